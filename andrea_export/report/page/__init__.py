"""A report as one HTML page."""

from andrea_export.report.page.page import render_html

__all__ = ["render_html"]
