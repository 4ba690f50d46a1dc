"""Is this artefact still the model?"""

from andrea_export.report.validate import ValidateOptions, validate
from andrea_export.report.validation import Row, Validation

__all__ = ["Row", "ValidateOptions", "Validation", "validate"]
