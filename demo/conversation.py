"""``Conversation``: a question and its answer on a console, while both become known."""

from rich.console import Console
from rich.text import Text

from omni_jobs.cli.terminal import printable
from omni_jobs.views import StageRunView


class Conversation:
    """Prints one question, and its answer as it grows."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._question = self._answer = ""

    def follow(self, question: str, stage: StageRunView) -> None:
        """Show the question, and the text that a stage has made so far."""
        self.show(question, (stage.progress and stage.progress.text) or self._answer)

    def show(self, question: str, answer: str) -> None:
        """Print the question unless it is printed already, and what is new in the answer."""
        if not self._question:
            self._question = question
            self._console.print(Text(f"\n> {printable(question)}\n", style="dim"), soft_wrap=True)
        if not answer.startswith(self._answer):  # a second attempt started from the beginning
            self._console.print("\n")
            self._answer = ""
        self._console.print(Text(printable(answer[len(self._answer) :])), end="", soft_wrap=True)
        self._answer = answer
