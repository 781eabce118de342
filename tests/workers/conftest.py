"""The embedded model, loaded once for every engine test."""

from __future__ import annotations

import pytest

from workers.load.model import LoadedModel, load_model


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    return load_model("builtin:smollm2-135m", "bf16", name="smollm2-135m")
