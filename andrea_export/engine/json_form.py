"""Whether a value that was read from JSON has the form that its readers rely on."""

from __future__ import annotations

from typing import Any

__all__ = ["misfit"]


def misfit(value: Any, form: Any, where: str) -> str:
    """Where `value` first differs from `form`, and what is there; "" where it fits.

    Args:
        value: plain data.
        form: a type; a list with the form of every item; a dict with the form of some keys, or
            with `...` for that of all; a tuple of forms, any one of which will do.
        where: what to call the value.
    """
    here = f"{where} is {value!r}"
    if isinstance(form, tuple):
        found = [misfit(value, option, where) for option in form]
        deeper = (problem for problem in found if problem != here)
        return "" if "" in found else next(deeper, here)
    if isinstance(form, type):
        fits = isinstance(value, form) and (form is bool or not isinstance(value, bool))
        return "" if fits else here
    if not isinstance(value, type(form)):
        return here
    if isinstance(form, list):
        parts = [(item, form[0], f"{where}[{index}]") for index, item in enumerate(value)]
    elif ... in form:
        parts = [(item, form[...], f"{where}.{key}") for key, item in value.items()]
    else:
        if missing := [key for key in form if key not in value]:
            return f"{where}.{missing[0]} is missing".lstrip(".")
        parts = [(value[key], kind, f"{where}.{key}".lstrip(".")) for key, kind in form.items()]
    return next(filter(None, (misfit(*part) for part in parts)), "")
