"""A value out of a list, with a hint for a mistyped one."""

from __future__ import annotations

import click

from corekit.suggest import did_you_mean


class Choice(click.Choice[str]):
    """click's choice; the message of a wrong value ends with the nearest known one."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        """As click words it."""
        known = [str(choice) for choice in self.choices]
        text = str(value) if self.case_sensitive else str(value).upper()
        names = known if self.case_sensitive else [name.upper() for name in known]
        message = super().get_invalid_choice_message(value, ctx)
        return message.removesuffix(".") + did_you_mean(text, names)
