"""The errors that headwise raises, drawn as a tree.

    HeadwiseError
    ├── BadValue (ValueError)       an argument has the right type and a wrong value
    │   ├── EngineRefused           the engine chosen by name cannot run this call
    │   └── BadFile                 a file or other external input cannot be used
    ├── BadType (TypeError)         an argument has the wrong type
    └── MissingExtra (ImportError)  a required package is not installed

Each message names the argument, the expected value, the value received and a correction, in English
and in Chinese; `str(error)` is the English message.
"""

from headwise.lang import Text


class HeadwiseError(Exception):
    """The base class of all errors that headwise raises on purpose.

    Args:
        message: a `Text`, or its English template.
        values: the values that replace the fields of the template.

    Attributes:
        text: the message in both languages.

    Example:
        >>> import headwise as hw
        >>> try:
        ...     hw.window(-1, 0)
        ... except hw.HeadwiseError as error:
        ...     print(error.text.zh)
        window：left 必须 >= 0，收到 -1；只看对角线请用 window(0, 0)
    """

    def __init__(self, message: str | Text, /, **values: object) -> None:
        self.text = message if isinstance(message, Text) else Text(message, **values)
        super().__init__(self.text.en)

    def __reduce__(self) -> tuple[type, tuple[Text]]:
        return type(self), (self.text,)


class BadValue(HeadwiseError, ValueError):
    """An argument has the right type and a wrong value."""


class BadType(HeadwiseError, TypeError):
    """An argument has the wrong type."""


class EngineRefused(BadValue):
    """The engine chosen by name cannot run this call; the message lists every reason.

    Example:
        >>> import headwise as hw, torch
        >>> q = torch.randn(1, 2, 3, 4)
        >>> try:
        ...     hw.attend(q, q, q, mask=hw.causal(), engine="lsh")
        ... except hw.EngineRefused as error:
        ...     print(str(error)[:34])
        engine: 'lsh' cannot run this call
    """


class BadFile(BadValue):
    """A file, a model directory or other external input cannot be used."""


class MissingExtra(HeadwiseError, ImportError):
    """A command or function of headwise needs a package that is not installed.

    Example:
        >>> str(MissingExtra.of("transformers", "inspect"))
        "this needs the package 'transformers'; install it with: pip install 'headwise[inspect]'"
    """

    @classmethod
    def of(cls, package: str, extra: str) -> "MissingExtra":
        """Return the error for a missing package and the extra that installs it."""
        return cls(
            "this needs the package '{package}'; install it with: {command}",
            package=package,
            command=f"pip install 'headwise[{extra}]'",
        )


def one_of(argument: str, value: object, allowed: tuple[str, ...]) -> BadValue:
    """Return the error for a word that is not in a list of words.

    Example:
        >>> str(one_of("engine", "cuda", ("eager", "sdpa")))
        "engine: unknown 'cuda'; expected one of 'eager', 'sdpa'"
    """
    return BadValue(
        "{argument}: unknown {value!r}; expected one of {words}",
        argument=argument,
        value=value,
        words=", ".join(map(repr, allowed)),
    )
