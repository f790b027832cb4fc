"""Rows of the tables of docs/kuka.md, from the recorded measurements."""

from .measured import measured, table_row


def of_the_harness():
    """Rewards without a network, on the 200 test scenes as they are."""
    for planner in ("expert", "do nothing", "noise"):
        cells = (
            measured(
                "kuka-reward", "reward", model=planner, engine=engine, turned=False, reward=kind,
                scenes=200,
            )
            for engine in ("mujoco", "bullet")
            for kind in ("original", "strict")
        )  # fmt: skip
        yield table_row(planner, *(f"{x:.1f}" for x in cells))
