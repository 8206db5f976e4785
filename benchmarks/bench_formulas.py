"""How fast formulas are: decisions a CPU second of whole episodes, and the register machine beside compiled source.

    python benchmarks/bench_formulas.py --nodes 10 40 100 400

First the rates of episodes of `balance` under formulas of several sizes, features included, on one thread. Then what
the formula alone costs a decision: as a program of the register machine, which needs no compilation, and as source that
numba compiles, with the seconds that this takes. Last, what a population of a search costs.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from numba import njit

from aaml.episodes.formulas import FormulaEpisodes
from aaml.evolve.grammar import Grammar
from aaml.policies.formulas.expression import FEATURES, Constant, Expression, Feature, features, parts
from aaml.policies.formulas.program import assemble, run_program
from aaml.policies.formulas.text import parse
from aaml.sim.task_episodes import TaskEpisodes
from aaml.sim.tasks import find_task

_LEAST_VARIANCE = "-(pair.cpu_growth_scaled + pair.memory_growth_scaled)"
_LONGER = """
-pair.cpu_gap_scaled * pod.cpu - pair.memory_gap_scaled * pod.memory - 0.1 * square(pair.imbalance_after)
+ min(pod.queue, pair.variance_rank)
"""
_LONG = """
(-pair.cpu_gap_scaled * exp(pod.cpu) - pair.memory_gap_scaled * sqrt(pod.memory) - 0.1 * square(pair.imbalance_after)
+ min(pod.queue, pair.variance_rank)) / (1 + node.pods_used) - log(pair.free_after_rank + 0.5) * 0.3
if pair.cpu_after < 0.9 and pair.memory_after < 0.9 else -max(pair.cpu_after, pair.memory_after) - 4
"""
FORMULAS = (_LEAST_VARIANCE, _LONGER, _LONG)
_SOURCE = {"square": "({0} * {0})", "/": "({0} / {1} if {1} != 0.0 else 0.0)", "neg": "(-{0})", "not": "(not {0})",
           "if": "({1} if {0} else {2})", "log": "np.log(abs({0}) + 1e-6)", "sqrt": "np.sqrt(abs({0}))",
           "exp": "np.exp({0})"}  # fmt: skip


def source(expression: Expression, register: dict[str, int]) -> str:
    """Return Python of one node's score; protection is simpler than the machine's, which only favours it."""
    if isinstance(expression, Constant):
        return repr(expression.value)
    if isinstance(expression, Feature):
        return f"x[{register[expression.name]}, i]"
    operands = [source(each, register) for each in expression.operands]
    if expression.operator in ("min", "max", "abs"):
        return f"{expression.operator}({', '.join(operands)})"
    return _SOURCE.get(expression.operator, f"({{0}} {expression.operator} {{1}})").format(*operands)


def compile_source(expression: Expression) -> Callable[..., None]:
    """Return a compiled (features [L, N], scores [N], n) of an expression."""
    register = {name: number for number, name in enumerate(features(expression))}
    code = f"def score(x, out, n):\n    for i in range(n):\n        out[i] = {source(expression, register)}\n"
    scope: dict[str, object] = {"np": np}
    exec(code, scope)
    return njit(nogil=True)(scope["score"])  # type: ignore[type-var]


@njit
def _repeat_machine(constants, code, loaded, registers, n, times):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    for _ in range(times):
        run_program(constants, code, loaded, registers, n)


@njit
def _repeat_source(score, x, out, n, times):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    for _ in range(times):
        score(x, out, n)


def seconds_of(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    started = time.process_time()
    call()
    return time.process_time() - started


def rates(task_name: str, sizes: list[int], pods: int) -> None:
    """Print decisions a CPU second."""
    task = find_task(task_name)
    expressions = [parse(text) for text in FORMULAS]
    print(f"{task_name}, decisions a CPU second of one thread, features included")
    print("nodes", *(f"size {parts(each):>3}" for each in expressions), sep="\t")
    for nodes in sizes:
        plans = TaskEpisodes(task, pods)
        episodes = FormulaEpisodes([plans.plan(seed, nodes) for seed in range(max(1, 640 // nodes))])
        found = []
        for expression in expressions:
            program = assemble(expression)
            episodes.play(program, [0])  # compiled before it is timed
            started = time.process_time()
            steps = sum(end.steps for end in episodes.play(program))
            found.append(steps / (time.process_time() - started))
        print(nodes, *(f"{rate:,.0f}" for rate in found), sep="\t", flush=True)


def machine_and_source(sizes: list[int]) -> None:
    """Print what a formula alone costs a decision."""
    print("\nthe formula alone, microseconds a decision: register machine / compiled source (seconds to compile it)")
    for text in FORMULAS:
        expression = parse(text)
        program, score = assemble(expression), compile_source(expression)
        x = np.random.default_rng(0).normal(size=(len(program.features), max(sizes)))
        registers, out = np.zeros((program.registers, max(sizes))), np.zeros(max(sizes))
        registers[: len(x)] = x
        compiling = seconds_of(lambda score=score, x=x, out=out: score(x, out, 1))
        machine = (program.constants, program.code, len(x), registers)
        _repeat_machine(*machine, 1, 1)
        _repeat_source(score, x, out, 1, 1)
        shown = []
        for nodes in sizes:
            times = 2_000_000 // nodes
            of_machine = seconds_of(lambda n=nodes, k=times, m=machine: _repeat_machine(*m, n, k))
            of_source = seconds_of(lambda n=nodes, k=times, s=score, x=x, o=out: _repeat_source(s, x, o, n, k))
            shown.append(f"{nodes} nodes {1e6 * of_machine / times:.2f} / {1e6 * of_source / times:.2f}")
        print(f"size {parts(expression)}: {', '.join(shown)} ({compiling:.2f} s)", flush=True)


def a_population(task_name: str, nodes: int, pods: int, candidates: int) -> None:
    """Print what random formulas cost on 64 episodes each, without races, and so what 1,000 would."""
    task, rng = find_task(task_name), np.random.default_rng(0)
    plans, grammar = TaskEpisodes(task, pods), Grammar(tuple(name for name in FEATURES if "gpu" not in name), 31)
    episodes = FormulaEpisodes([plans.plan(seed, nodes) for seed in range(64)])
    programs = [assemble(grammar.first(rng)) for _ in range(candidates)]
    episodes.play(programs[0], [0])
    started = time.process_time()
    for program in programs:
        _ = [end.metrics[task.metric] for end in episodes.play(program)]
    each = (time.process_time() - started) / candidates
    print(
        f"\n{candidates} random formulas, 64 episodes of {pods} pods on {nodes} nodes: {1000 * each:.0f} ms each, ",
        end="",
    )
    print(f"so 1,000 take {1000 * each / 60:.1f} minutes of one core")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="balance")
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 40, 100, 400])
    parser.add_argument("--pods", type=int, default=600)
    parser.add_argument("--candidates", type=int, default=50)
    args = parser.parse_args()
    rates(args.task, args.nodes, args.pods)
    machine_and_source(args.nodes)
    a_population(args.task, args.nodes[0], args.pods, args.candidates)


if __name__ == "__main__":
    main()
