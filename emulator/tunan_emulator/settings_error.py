"""The one error of this package."""


class SettingsError(ValueError):
    """A setting of the emulated machine that means nothing; says which, and what is known."""
