"""``benchmarks.stepping`` counts the steps that a stop costs, and its answers tell of one that was forgotten."""

from pathlib import Path

from benchmarks.stepping import after, answer, lost_steps


def note(log: Path, worker: str, text: str, *steps: tuple[float, int]) -> None:
    with (log / worker).open("a", encoding="utf-8") as file:
        file.writelines(f"{at}\t{step}\t{text}\n" for at, step in steps)


def test_what_was_taken_again_is_counted_for_each_worker_that_went_on(tmp_path: Path) -> None:
    note(tmp_path, "1", "a", (1.0, 1), (2.0, 2), (3.0, 3))
    note(tmp_path, "2", "a", (4.0, 2), (5.0, 3), (6.0, 4))
    note(tmp_path, "1", "a", (7.0, 5), (8.0, 6))
    note(tmp_path, "3", "a", (9.0, 1), (10.0, 2))
    note(tmp_path, "3", "b", (1.5, 1), (2.5, 2))
    assert lost_steps(tmp_path) == [2, 0, 6]


def test_an_answer_is_that_of_all_steps_in_order() -> None:
    assert answer("a") != answer("b")
    assert after(2, after(1, 7)) != after(1, after(2, 7))
    assert after(2, after(1, 7)) != after(2, 7)
