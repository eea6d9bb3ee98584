"""Frequencies of rotary position encodings, and their scaling to longer texts."""

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
"""The number of positions in a call; a scalar tensor if the positions are explicit."""


@dataclass(eq=False)
class Frequencies:
    """The frequencies of a rotary encoding: the rotation of each pair of features per position.

    Subclasses override `per_pair` to scale the frequencies.

    Args:
        base: the upper limit of the wavelengths, divided by 2 pi.

    Raises:
        BadType, BadValue: if an argument is not a number or is too small, also in the subclasses.

    Example:
        >>> Frequencies(100.0).per_pair(4, torch.device("cpu")).tolist()
        [1.0, 0.1]
    """

    base: float = 10000.0

    length_scale = 1.0  # the factor on rotated queries and keys
    depends_on_length = False  # whether `at_length` returns different frequencies

    def __post_init__(self) -> None:
        self.base = check_base(type(self).__name__, self.base)

    def per_pair(self, rotary_dim: int, device: torch.device) -> Tensor:
        """Return the rotation of each pair in radians per position, (rotary_dim / 2,), float64."""
        even = torch.arange(0, rotary_dim, 2, device=device, dtype=torch.float64)
        return self.base ** (-even / rotary_dim)

    def at_length(self, length: Length) -> "Frequencies":
        """Return the frequencies for a call whose last position is length - 1."""
        return self


@dataclass(eq=False, kw_only=True)
class LinearScaling(Frequencies):
    """Position interpolation: every frequency is divided by a factor.

    Args:
        base: as for `Frequencies`, also in the classes below.
        factor: the extension of the text length, at least 1, also in the classes below.

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
    """NTK-aware scaling: for texts longer than ``original_length``, the base grows with the length.

    base' = base · (factor · length / original_length - (factor - 1))^(D / (D - 2)), where D is
    rotary_dim. A cache of `headwise.nn` stores keys before rotation, so every call can rotate all
    keys with the frequencies for the current length.

    Args:
        factor: the growth factor of the base.
        original_length: the text length in training, also in the classes below.

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
        if rotary_dim < 4:  # the frequency of a single pair is 1 for any base
            return super().per_pair(rotary_dim, device)
        length = self.original_length if self.length is None else self.length
        length = torch.as_tensor(length, dtype=torch.float64, device=device)
        ratio = length.clamp(min=self.original_length) / self.original_length
        growth = (self.factor * ratio - (self.factor - 1)) ** (rotary_dim / (rotary_dim - 2))
        even = torch.arange(0, rotary_dim, 2, device=device, dtype=torch.float64)
        return (self.base * growth) ** (-even / rotary_dim)


@dataclass(eq=False, kw_only=True)
class YaRN(Frequencies):
    """YaRN: high frequencies stay, low ones are divided by a factor, and the rest are interpolated.

    Args:
        beta_fast: frequencies with more rotations than this within the original length stay.
        beta_slow: frequencies with fewer rotations than this are divided by the factor.
        attention_factor: the factor on queries and on keys; None means 0.1 ln(factor) + 1.
        truncate: whether to round the limits of the interpolated range outwards to whole pairs.

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
    """The scaling of Llama 3.1: low frequencies are divided by a factor, high frequencies stay.

    Args:
        low_frequency: frequencies with fewer rotations than this within the original length are
            divided by the factor.
        high_frequency: frequencies with more rotations than this stay; between the two limits,
            frequencies are interpolated.

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
    """LongRoPE: the frequency of each pair is divided by a separate factor.

    Args:
        short_factors: the factors of the pairs for texts up to the original length.
        long_factors: the factors of the pairs for longer texts.
        factor: the extension of the text length, which determines ``attention_factor``.
        attention_factor: the factor on queries and on keys; None means
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
                    "LongRoPE: {name} must contain one factor for each of {pairs} pairs, got "
                    "{got} factors; the number of pairs is rotary_dim / 2",
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
    """Return the frequencies that a transformers configuration describes.

    The entries ``partial_rotary_factor`` and ``mrope_section`` correspond to the arguments
    ``rotary_dim`` and ``sections`` of `Rotary` and are ignored here.

    Args:
        parameters: the entry ``rope_parameters`` of the configuration.
        max_length: the entry ``max_position_embeddings`` of the configuration.

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
"""The class of each ``rope_type``, and a mapping from transformers' names to its arguments."""


def _check_numbers(owner: Frequencies, *names: str, least: float = 0.0) -> None:
    """Check that arguments or their elements are finite, above 0 and at least ``least``."""
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
