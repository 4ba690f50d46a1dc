"""Which jobs can be done here, from what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from andrea_export.doctor.findings import PROBES, Finding
from andrea_export.engine.flavors import FLAVORS

__all__ = ["JOBS", "Diagnosis", "Job", "diagnose"]


@dataclass(frozen=True)
class Job:
    """A job and the ways to be able to do it: any one whose findings are all there.

    is_main: the toolkit is of no use on a machine that cannot do it.
    """

    name: str
    ways: tuple[tuple[str, ...], ...]
    is_main: bool = False


JOBS: tuple[Job, ...] = (
    Job("export a checkpoint to ONNX", (("torch", "onnx"),), is_main=True),
    Job("compare an export with PyTorch", (("torch", "onnx", "onnxruntime"),), is_main=True),
    Job("build an engine", (("tensorrt", "driver", "gpu"), ("rtx",))),
    Job("run an engine", tuple((kind, "driver", "gpu", "torch-gpu") for kind in FLAVORS)),
    Job("compile the plugins", (("nvcc", "g++", "headers"),)),
    Job("use the plugins in an engine", (("tensorrt", "driver", "gpu", "plugins"),)),
)


@dataclass(frozen=True)
class Diagnosis:
    """What was found, and what follows.

    Attributes:
        findings: in the order of the probes.
        missing: job → names of findings that it lacks, by the way that lacks fewest; () if none.
    """

    findings: tuple[Finding, ...]
    missing: dict[str, tuple[str, ...]]

    @property
    def can_do_main_job(self) -> bool:
        return not any(self.missing[job.name] for job in JOBS if job.is_main)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.can_do_main_job,
            "findings": [asdict(finding) for finding in self.findings],
            "jobs": {
                job: {"possible": not missing, "missing": list(missing)}
                for job, missing in self.missing.items()
            },
        }


def diagnose(probes: Iterable[Callable[[], Finding]] = PROBES) -> Diagnosis:
    """Look at this machine. Takes a few seconds: what is installed is really loaded."""
    return judge(tuple(probe() for probe in probes))


def judge(findings: tuple[Finding, ...]) -> Diagnosis:
    there = {finding.name for finding in findings if finding.found}
    missing = {}
    for job in JOBS:
        lacks = [tuple(name for name in way if name not in there) for way in job.ways]
        missing[job.name] = min(lacks, key=len)
    return Diagnosis(findings, missing)
