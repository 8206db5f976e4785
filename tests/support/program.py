"""The program that README begins with, made small enough for a test."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def first_program() -> str:
    """Return README's first block of Python."""
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]


def small_program() -> str:
    """Return the program with a short training and few episodes."""
    program = first_program()
    for long, short in (
        ("1_000_000", "64, teacher_steps=700, envs=2, validation_episodes=1, pods=30"),
        ("range(1000, 1020)", "range(1000, 1002)"),
    ):
        assert long in program
        program = program.replace(long, short)
    return program
