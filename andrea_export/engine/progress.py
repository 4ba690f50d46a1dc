"""One fraction from the nested phases that TensorRT's progress monitor reports."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BuildProgress"]


@dataclass
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


class BuildProgress:
    """Phases nest, start late and overlap; the fraction only ever grows."""

    def __init__(self) -> None:
        self.fraction = 0.0
        self._phases: dict[str, _Phase] = {}

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        self._phases[phase] = _Phase(parent, max(steps, 1))

    def step(self, phase: str, step: int) -> None:
        """Step `step` (from 0) of `phase` is done."""
        if phase in self._phases:
            self._phases[phase].done = step + 1
            self._update()

    def finish(self, phase: str) -> None:
        if phase in self._phases:
            self._phases[phase].done = self._phases[phase].steps
            self._update()
            if self._phases[phase].parent is not None:
                del self._phases[phase]

    def _update(self) -> None:
        roots = [name for name, phase in self._phases.items() if phase.parent is None]
        if roots:
            self.fraction = max(self.fraction, self._share(roots[-1]))

    def _share(self, name: str) -> float:
        phase = self._phases[name]
        below = (self._share(n) for n, p in self._phases.items() if p.parent == name)
        return min(1.0, (phase.done + min(1.0, sum(below))) / phase.steps)
