"""One document of a corpus through a model."""

from dataclasses import dataclass

from headwise.errors import BadFile, HeadwiseError
from headwise.heads.capture import capture
from headwise.heads.corpus.aligning import align, check_size
from headwise.heads.corpus.document import Document
from headwise.heads.corpus.gathered import Half
from headwise.heads.inputs import check_length, encode, length, run, separators
from headwise.heads.models.load import Loaded


@dataclass(frozen=True, eq=False)
class Measurer:
    """A model that documents are read with.

    Attributes:
        loaded: the model and its tokenizer.
        truncate: whether documents that are too long are cut; otherwise they are refused.
    """

    loaded: Loaded
    truncate: bool = False

    def check(self, document: Document) -> None:
        """Whether the model can read a document, without running it.

        Raises:
            BadFile: if it has no token, or too many.
        """
        try:
            for text in (document.text, document.target):
                if text is not None:
                    count = length(self.loaded, text)
                    if not self.truncate:
                        check_length(self.loaded, count)
        except HeadwiseError as error:
            raise _at(document, error) from error

    def measure(self, document: Document) -> Half:
        """The sums of one document.

        Raises:
            BadFile: if the model cannot read it.
        """
        try:
            return self._measure(document)
        except HeadwiseError as error:
            raise _at(document, error) from error

    def _measure(self, document: Document) -> Half:
        inputs, whole = encode(
            self.loaded, document.text, truncate=self.truncate, target=document.target
        )
        special = separators(self.loaded.tokenizer)
        heads = "all" if document.alignment else ()
        check_size(document, inputs, self.loaded.config)
        with capture(self.loaded.model, heads=heads, separators=special) as seen:
            run(self.loaded, inputs)
        read = inputs["input_ids"].shape[1]
        found = Half(statistics=seen.statistics)
        align(found.alignment, document, self.loaded, inputs, seen)
        found.count(tokens=read, cut=read < whole)
        return found


def _at(document: Document, error: HeadwiseError) -> BadFile:
    return BadFile(f"corpus: {document.name}: {error}", f"corpus：{document.name}：{error.text.zh}")
