"""How fast this machine evaluates and restores, learned from every turn, for predictions."""

from __future__ import annotations

from dataclasses import dataclass, field

_WEIGHT = 0.3


@dataclass(slots=True)
class Rate:
    """A moving average of units per millisecond; `assumed` until something was measured."""

    assumed: float
    _measured: float | None = field(default=None, init=False)

    @property
    def value(self) -> float:
        return self._measured or self.assumed

    @property
    def measured(self) -> float | None:
        return self._measured

    def learn(self, units: float, ms: float) -> None:
        if units <= 0 or ms <= 0:
            return
        seen = units / ms
        known = self._measured
        self._measured = seen if known is None else (1 - _WEIGHT) * known + _WEIGHT * seen

    def ms(self, units: float) -> float:
        return units / self.value


@dataclass(slots=True)
class Rates:
    """`prefill` in tokens per ms, `restore` in bytes per ms."""

    prefill: Rate = field(default_factory=lambda: Rate(0.5))
    restore: Rate = field(default_factory=lambda: Rate(1e6))
