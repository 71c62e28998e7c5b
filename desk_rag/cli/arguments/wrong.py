"""Say in desk-rag's own words what is wrong with a command line, and what is possible instead."""

from __future__ import annotations

import re
from typing import Any

from desk_rag.errors import ConfigError


def usage_error(error: Exception) -> ConfigError | None:
    """Return what a person is told about an error that typer raised for wrong arguments; None for any other error.

    Typer exports only some of these classes, so they are told apart by their names.
    """
    names = {each.__name__ for each in type(error).__mro__}
    if "UsageError" not in names or "NoArgsIsHelpError" in names:
        return None
    fault: Any = error
    command = fault.ctx.command_path if fault.ctx is not None else "desk-rag"
    remedy = f"`{command} --help` lists what it takes."
    if "NoSuchOption" in names:
        similar = sorted(fault.possibilities or ())
        hint = f"Did you mean {' or '.join(similar)}? " if similar else ""
        return ConfigError(f"{command} has no option {fault.option_name}.", remedy=hint + remedy)
    if "MissingParameter" in names:
        return ConfigError(f"{command} needs a {_name(fault)}.", remedy=remedy)
    if "BadOptionUsage" in names:
        return ConfigError(f"{fault.option_name} needs a value.", remedy=remedy)
    if "BadParameter" in names:
        return ConfigError(_wrong_value(_name(fault), fault.message), remedy=remedy)
    extra = re.search(r"unexpected extra arguments?(?:\(s\))? \((.*)\)", fault.message)
    if extra:
        return ConfigError(f"{command} does not know what to do with '{extra[1]}'.", remedy=remedy)
    return ConfigError(fault.message, remedy=remedy)


def _name(fault: Any) -> str:
    """Return an option as it is typed, or an argument in capitals."""
    if fault.param is None:
        return str(fault.param_hint or "value")
    options = [option for option in fault.param.opts if option.startswith("-")]
    return str(max(options, key=len)) if options else str(fault.param.name).upper()


def _wrong_value(name: str, message: str) -> str:
    """Return a sentence about a value that was checked against the type of its parameter."""
    choices = re.search(r"'(.*)' is not one of (.*?)\.?$", message, re.DOTALL)
    if choices:
        possible = ", ".join(re.findall(r"'([^']*)'", choices[2]))
        return f"{name} cannot be '{choices[1]}'. It may be one of: {possible}."
    for words, limit in (("greater than or equal to", "at least"), ("less than or equal to", "at most")):
        if bound := re.search(rf"{words} ([\d.]+)", message):
            return f"{name} must be {limit} {bound[1]}."
    if "valid integer" in message:
        return f"{name} must be a whole number."
    if "valid number" in message:
        return f"{name} must be a number."
    return f"{name}: {message.removeprefix('Value error, ')}"
