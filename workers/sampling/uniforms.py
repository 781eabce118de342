"""Random numbers that depend on nothing but a seed and a position.

A counter generator has no state: the number drawn at output position p of a sequence is the same in every
batch, after a preemption and on another worker. The mixing function is SplitMix64 (Steele, Lea and Flood,
OOPSLA 2014), applied to the seed and then to the position.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits."""
    return (_mix(_mix(seed) + position) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
