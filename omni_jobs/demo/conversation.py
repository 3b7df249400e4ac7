"""``Conversation``: prints a question, and the answer of a stage while it grows."""

from rich.console import Console
from rich.text import Text

from omni_jobs.cli.formats import printable
from omni_jobs.views import StageRunView


class Conversation:
    """One question and its answer on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_asked = False
        self._shown = ""

    def ask(self, question: str) -> None:
        """Print the question, unless it is printed already."""
        if not self._is_asked:
            self._is_asked = True
            self._console.print(Text(f"\n> {printable(question)}\n", style="dim"), soft_wrap=True)

    def follow(self, stage: StageRunView) -> None:
        """Print what is new in the text that a stage has made so far."""
        if stage.progress is not None and stage.progress.text:
            self._print_more(stage.progress.text)

    def end(self, answer: str) -> None:
        """Print what is left of the whole answer, and end the line."""
        self._print_more(answer)
        self._console.print()

    def _print_more(self, text: str) -> None:
        if not text.startswith(self._shown):  # a second attempt started from the beginning
            self._console.print("\n")
            self._shown = ""
        self._console.print(Text(printable(text[len(self._shown) :])), end="", soft_wrap=True)
        self._shown = text
