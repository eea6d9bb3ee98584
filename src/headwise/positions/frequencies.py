"""The angles by which a rotary position turns, and the ways to scale them to longer texts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from headwise.errors import BadValue, one_of
from headwise.positions.position import check_base
from headwise.shapes import check_integer, format_value

Length = int | Tensor
"""The number of positions of a call; a tensor without axes where positions are explicit."""


@dataclass(eq=False)
class Frequencies:
    """The angle by which each pair of numbers turns from one position to the next.

    A scaled rotary position is a subclass with a `per_pair` of its own.

    Args:
        base: the longest wavelength over 2 pi.

    Raises:
        BadType, BadValue: if an argument is no number or too small; so for the subclasses.

    Example:
        >>> Frequencies(100.0).per_pair(4, torch.device("cpu")).tolist()
        [1.0, 0.1]
    """

    base: float = 10000.0

    length_scale = 1.0  # what the turned numbers are multiplied by
    depends_on_length = False  # whether `at_length` gives others

    def __post_init__(self) -> None:
        self.base = check_base(type(self).__name__, self.base)

    def per_pair(self, rotary_dim: int, device: torch.device) -> Tensor:
        """Radians per position of each pair, (rotary_dim / 2,), in float64."""
        even = torch.arange(0, rotary_dim, 2, device=device, dtype=torch.float64)
        return self.base ** (-even / rotary_dim)

    def at_length(self, length: Length) -> "Frequencies":
        """The frequencies in a call whose last position is length - 1."""
        return self


@dataclass(eq=False, kw_only=True)
class LinearScaling(Frequencies):
    """Position interpolation: every angle is divided by a factor.

    Args:
        base: as for `Frequencies`; so for the others.
        factor: how many times longer texts may become, at least 1; so for the others.

    Source: Chen et al. 2023 (Position Interpolation), equation 4, where factor is L'/L.

    Example:
        >>> LinearScaling(factor=4.0).per_pair(2, torch.device("cpu")).tolist()
        [0.25]
    """

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_numbers(self, "factor", least=1.0)

    def per_pair(self, rotary_dim: int, device: torch.device) -> Tensor:
        return super().per_pair(rotary_dim, device) / self.factor


@dataclass(eq=False, kw_only=True)
class DynamicNTK(Frequencies):
    """NTK-aware scaling: beyond a length the base grows with the length of the text.

    base' = base · (factor · length / original_length - (factor - 1))^(D / (D - 2)), D the rotary
    dim. A cache of `headwise.nn` holds keys before rotation, so that all keys of a call have the
    frequencies of its length.

    Args:
        factor: how strongly the base grows.
        original_length: the length of the texts in training; so for the others.

    Source: bloc97 and emozilla 2023, as described by Peng et al. 2023 (YaRN), section 3.3; the
        formula is that of transformers.

    Example:
        >>> ntk, cpu = DynamicNTK(factor=2.0, original_length=8, base=100.0), torch.device("cpu")
        >>> [round(ntk.at_length(n).per_pair(4, cpu)[1].item(), 4) for n in (8, 12)]
        [0.1, 0.05]
    """

    factor: float
    original_length: int
    length: Length | None = field(default=None, repr=False)
    depends_on_length = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_numbers(self, "factor", least=1.0)
        check_integer("DynamicNTK", "original_length", self.original_length, 1)

    def at_length(self, length: Length) -> "DynamicNTK":
        return replace(self, length=length)

    def per_pair(self, rotary_dim: int, device: torch.device) -> Tensor:
        if rotary_dim < 4:  # one pair turns by 1 for any base
            return super().per_pair(rotary_dim, device)
        length = self.original_length if self.length is None else self.length
        length = torch.as_tensor(length, dtype=torch.float64, device=device)
        ratio = length.clamp(min=self.original_length) / self.original_length
        growth = (self.factor * ratio - (self.factor - 1)) ** (rotary_dim / (rotary_dim - 2))
        even = torch.arange(0, rotary_dim, 2, device=device, dtype=torch.float64)
        return (self.base * growth) ** (-even / rotary_dim)


@dataclass(eq=False, kw_only=True)
class YaRN(Frequencies):
    """Fast pairs keep their angle, slow ones are divided by a factor, others are in between.

    Args:
        beta_fast: a pair that turns more often within the original length keeps its angle.
        beta_slow: a pair that turns less often is divided by the factor.
        attention_factor: what queries and keys are multiplied by, each; None means
            0.1 ln(factor) + 1.
        truncate: whether the range in between is widened to whole pairs.

    Source: Peng et al. 2023 (YaRN), section 3.4; s there is factor, alpha is beta_slow, and beta is
        beta_fast. The factor on queries and keys is 1/sqrt(t) of equation 22.

    Example:
        >>> round(YaRN(factor=4.0, original_length=64).length_scale, 4)
        1.1386
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_numbers(self, "factor", least=1.0)
        _check_numbers(self, "beta_fast", "beta_slow", "attention_factor")
        check_integer("YaRN", "original_length", self.original_length, 1)
        own = 0.1 * math.log(self.factor) + 1
        self.length_scale = own if self.attention_factor is None else self.attention_factor

    def per_pair(self, rotary_dim: int, device: torch.device) -> Tensor:
        def pair_of(turns: float) -> float:
            wavelength = self.original_length / (turns * 2 * math.pi)
            return rotary_dim * math.log(wavelength) / (2 * math.log(self.base))

        low, high = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary_dim - 1)
        number = torch.arange(rotary_dim // 2, device=device, dtype=torch.float64)
        slow = ((number - low) / (high - low if high != low else 0.001)).clamp(0, 1)
        usual = super().per_pair(rotary_dim, device)
        return usual / self.factor * slow + usual * (1 - slow)


@dataclass(eq=False, kw_only=True)
class Llama3Scaling(Frequencies):
    """Long wavelengths are divided by a factor, short ones are kept, others are in between.

    Args:
        low_frequency: a pair that turns less often within the original length is divided.
        high_frequency: a pair that turns more often keeps its angle.

    Source: Grattafiori et al. 2024 (The Llama 3 Herd of Models); Meta's code for Llama 3.1,
        ``apply_scaling``. Its base is 500000.

    Example:
        >>> scaling = Llama3Scaling(factor=8.0, original_length=8192, base=500000.0)
        >>> (scaling.per_pair(128, torch.device("cpu"))[[0, -1]] * 1e9).round().tolist()
        [1000000000.0, 307.0]
    """

    factor: float
    original_length: int
    low_frequency: float = 1.0
    high_frequency: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_numbers(self, "factor", least=1.0)
        _check_numbers(self, "low_frequency", "high_frequency")
        check_integer("Llama3Scaling", "original_length", self.original_length, 1)
        if not self.low_frequency < self.high_frequency:
            raise BadValue(
                "Llama3Scaling: low_frequency must be below high_frequency, got {low} and {high}; "
                "Llama 3.1 uses 1 and 4",
                low=self.low_frequency,
                high=self.high_frequency,
            )

    def per_pair(self, rotary_dim: int, device: torch.device) -> Tensor:
        usual = super().per_pair(rotary_dim, device)
        turns = usual * self.original_length / (2 * math.pi)
        span = self.high_frequency - self.low_frequency
        kept = ((turns - self.low_frequency) / span).clamp(0, 1)
        return (1 - kept) * usual / self.factor + kept * usual


@dataclass(eq=False, kw_only=True)
class LongRoPE(Frequencies):
    """Every angle is divided by a factor of its own, in long texts by another one.

    Args:
        short_factors: one for each pair, in texts of up to the original length.
        long_factors: one for each pair, in longer texts.
        factor: how many times longer texts may become, for the factor on queries and keys.
        attention_factor: what queries and keys are multiplied by, each; None means
            sqrt(1 + ln(factor) / ln(original_length)).

    Source: Ding et al. 2024 (LongRoPE), section 3; the code of Phi-3.

    Example:
        >>> rope = LongRoPE(short_factors=[1.0], long_factors=[4.0], original_length=8, factor=4.0)
        >>> [rope.at_length(n).per_pair(2, torch.device("cpu")).item() for n in (8, 9)]
        [1.0, 0.25]
    """

    short_factors: Sequence[float]
    long_factors: Sequence[float]
    factor: float
    original_length: int
    attention_factor: float | None = None
    length: Length | None = field(default=None, repr=False)
    depends_on_length = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_numbers(self, "factor", least=1.0)
        _check_numbers(self, "short_factors", "long_factors", "attention_factor")
        check_integer("LongRoPE", "original_length", self.original_length, 2)
        own = math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))
        self.length_scale = own if self.attention_factor is None else self.attention_factor

    def at_length(self, length: Length) -> "LongRoPE":
        return replace(self, length=length)

    def per_pair(self, rotary_dim: int, device: torch.device) -> Tensor:
        usual = super().per_pair(rotary_dim, device)
        for name in ("short_factors", "long_factors"):
            if len(getattr(self, name)) != len(usual):
                raise BadValue(
                    "LongRoPE: {name} must be one factor for each of the {pairs} pairs, got {got}; "
                    "there are rotary_dim / 2",
                    name=name,
                    pairs=len(usual),
                    got=len(getattr(self, name)),
                )
        short, long = (
            torch.tensor(factors, dtype=torch.float64, device=device)
            for factors in (self.short_factors, self.long_factors)
        )
        length = torch.as_tensor(0 if self.length is None else self.length, device=device)
        return usual / torch.where(length > self.original_length, long, short)


def frequencies_from(parameters: Mapping[str, Any], max_length: int) -> Frequencies:
    """The frequencies that a transformers configuration describes.

    ``partial_rotary_factor`` and ``mrope_section`` are arguments of `Rotary`: ``rotary_dim`` and
    ``sections``.

    Args:
        parameters: the configuration's ``rope_parameters``.
        max_length: its ``max_position_embeddings``.

    Raises:
        BadValue: if the ``rope_type`` is unknown, or a number is missing or wrong.

    Example:
        >>> frequencies_from({"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}, 4096)
        LinearScaling(base=10000.0, factor=2.0)
    """
    kind = parameters.get("rope_type", "default")
    if kind not in _KINDS:
        raise one_of("rope_type", kind, tuple(_KINDS))
    make, names = _KINDS[kind]
    given = {"base": parameters.get("rope_theta", 10000.0)}
    given |= {ours: parameters[name] for name, ours in names.items() if name in parameters}
    if "original_length" in names.values():
        given["original_length"] = parameters.get("original_max_position_embeddings") or max_length
    if kind == "dynamic":
        given["original_length"] = max_length
    elif "factor" in names.values() and given.get("factor") is None:
        given["factor"] = max_length / given.get("original_length", max_length)
    scales = [parameters.get(name) for name in ("mscale", "mscale_all_dim")]
    if kind == "yarn" and given.get("attention_factor") is None and all(scales):
        upper, lower = (0.1 * scale * math.log(given["factor"]) + 1 for scale in scales if scale)
        given["attention_factor"] = upper / lower
    return make(**given)


_COMMON = {"factor": "factor", "original_max_position_embeddings": "original_length"}
_ATTENTION = {"attention_factor": "attention_factor"}
_BETAS = {name: name for name in ("beta_fast", "beta_slow", "truncate")}
_BANDS = {"low_freq_factor": "low_frequency", "high_freq_factor": "high_frequency"}
_FACTORS = {"short_factor": "short_factors", "long_factor": "long_factors"}
_KINDS: dict[str, tuple[type[Frequencies], dict[str, str]]] = {
    "default": (Frequencies, {}),
    "linear": (LinearScaling, {"factor": "factor"}),
    "dynamic": (DynamicNTK, _COMMON),
    "yarn": (YaRN, _COMMON | _BETAS | _ATTENTION),
    "llama3": (Llama3Scaling, _COMMON | _BANDS),
    "longrope": (LongRoPE, _COMMON | _FACTORS | _ATTENTION),
}
"""The class of each ``rope_type``, and its arguments by their names in transformers."""


def _check_numbers(owner: Frequencies, *names: str, least: float = 0.0) -> None:
    """Check that arguments, or their members, are finite numbers above 0 and at least ``least``."""
    for name in names:
        value = getattr(owner, name)
        for number in value if isinstance(value, Sequence) else (value,):
            if number is None and name == "attention_factor":
                continue
            real = isinstance(number, int | float) and not isinstance(number, bool)
            if not real or not (math.isfinite(number) and number > 0 and number >= least):
                raise BadValue(
                    "{owner}: {name} must be a finite number {bound}, got {got}",
                    owner=type(owner).__name__,
                    name=name,
                    bound=f">= {least:g}" if least else "> 0",
                    got=format_value(number),
                )
