"""What this machine has, what each missing thing would enable, and how to get it."""

from andrea_export.doctor.diagnosis import Diagnosis, diagnose
from andrea_export.doctor.findings import Finding

__all__ = ["Diagnosis", "Finding", "diagnose"]
