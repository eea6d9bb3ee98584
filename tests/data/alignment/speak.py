"""Write one WAV file for each sentence, and speech.jsonl with the time of each word.

Debian's espeak-ng speaks the sentences; its library reports the sample at which each word begins.
Run: python -m tests.data.alignment.speak
"""

import ctypes
import json
import re
import wave
from pathlib import Path

import torch

HERE = Path(__file__).parent
RATE, FRAME = 16000, 320
"""Samples a second that Whisper hears, and samples of each of its keys: 20 ms."""

SENTENCES = (
    "Every morning the old captain walked slowly along the empty beach.",
    "My brother opened the window because the kitchen was very hot.",
    "Seven black horses crossed the muddy river before sunset.",
)

RETRIEVAL, WORD, END = 1, 1, 0


class Event(ctypes.Structure):
    """`espeak_EVENT` of speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


def spoken(text: str) -> tuple[list[int], int, list[float]]:
    """Samples, their rate, and the second at which each word begins."""
    library = ctypes.CDLL("libespeak-ng.so.1")
    rate = library.espeak_Initialize(RETRIEVAL, 0, None, 0)
    samples: list[int] = []
    starts: list[float] = []
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(Event)
    )

    def hear(wav: object, count: int, events: object) -> int:
        if wav:
            samples.extend(wav[:count])  # type: ignore[index]
        for event in iter(events):  # type: ignore[call-overload]
            if event.type == END:
                break
            if event.type == WORD:
                starts.append(event.audio_position / 1000)
        return 0

    callback = kind(hear)
    library.espeak_SetSynthCallback(callback)
    library.espeak_SetVoiceByName(b"en-us")
    library.espeak_SetParameter(1, 140, 0)  # words a minute
    content = text.encode() + b"\0"
    library.espeak_Synth(content, len(content), 0, 0, 0, 1, None, None)
    library.espeak_Synchronize()
    library.espeak_Terminate()
    return samples, rate, starts


def resampled(samples: list[int], rate: int) -> torch.Tensor:
    """The same sound at `RATE`, without what lies above half of it."""
    sound = torch.tensor(samples, dtype=torch.float64)
    count = round(len(samples) * RATE / rate)
    spectrum = torch.fft.rfft(sound)[: count // 2 + 1]
    found = torch.fft.irfft(spectrum, count) * (count / len(samples))
    return found.clamp(-32768, 32767).round().to(torch.int16)


def spans(starts: list[float], seconds: float) -> list[tuple[int, int]]:
    """For each word the first key and the one after the last."""
    ends = [*starts[1:], seconds]
    return [
        (int(start * RATE // FRAME), max(int(-(-end * RATE // FRAME)), 1))
        for start, end in zip(starts, ends, strict=True)
    ]


def main() -> None:
    """Write the files."""
    from headwise.heads.models.load import load

    tokenizer = load("whisper").tokenizer
    lines = []
    for number, text in enumerate(SENTENCES):
        samples, rate, starts = spoken(text)
        sound = resampled(samples, rate)
        words = re.findall(r"\S+", text)
        if len(words) != len(starts):
            raise ValueError(f"{text}: {len(words)} words, {len(starts)} times")
        path = HERE / f"speech_{number}.wav"
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes(sound.numpy().tobytes())
        where = spans(starts, len(samples) / rate)
        pairs, place = [], 1  # the token at place p is told by the query before it
        for word, (start, stop) in zip(words, where, strict=True):
            for token in tokenizer.tokenize(f" {word}"):
                if any(letter.isalnum() for letter in token):  # a full stop is not spoken
                    pairs += [[place, key] for key in range(start, stop)]
                place += 1
        lines.append(json.dumps({"text": path.name, "target": f" {text}", "alignment": pairs}))
    (HERE / "speech.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
