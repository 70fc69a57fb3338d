"""`tfdist burnin`: nodes with planted faults are named, and no others; here from numbers as measured."""

import json
import random
import threading
import time

import pytest

from tfdist.tools.doctor.burnin import exchange, judgement
from tfdist.tools.doctor.burnin.judgement import Device

NODES, ROUNDS = 60, 20
LIMITS = {"slow": 0.7, "slow_link": 0.25}


def measured(seed, rounds=ROUNDS, nodes=NODES):
    """Devices of as many nodes, whose rates vary by 10 %."""
    draw = random.Random(seed)

    def one_round(rank, count):
        rates = {"arithmetic": 90.0, "memory": 40.0, "link": 1.0}
        same = {"hash": "aa", "finite": True, "from": (rank + 1 + count % min(5, nodes - 1)) % nodes}
        return same | {name: rate * draw.uniform(0.9, 1.1) for name, rate in rates.items()}

    return [
        Device(
            rank=rank, node=f"n{rank}", name="CPU", kind="P", rounds=[one_round(rank, count) for count in range(rounds)]
        )
        for rank in range(nodes)
    ]


def test_no_false_alarm_in_200_rounds():
    assert judgement.problems(measured(0, rounds=200), **LIMITS) == {}
    assert all(judgement.problems(measured(seed, rounds=3), **LIMITS) == {} for seed in range(20))


def test_planted_faults_are_named_and_nothing_else():
    devices = measured(1)
    devices[7].rounds[3]["hash"] = "ab"
    for one in devices[11].rounds:
        one |= {"hash": "ff", "finite": False}
    for one in devices[20].rounds:
        one["arithmetic"] /= 2
    for one in devices[21].rounds[: ROUNDS // 2 + 2]:
        one["memory"] *= 0.5
    for device in devices:
        for one in device.rounds:
            if device.rank == 50 or one["from"] in (40, 41):
                one["link"] *= 0.2
    found = judgement.problems(devices, **LIMITS)
    assert sorted(found) == ["n11", "n20", "n21", "n40", "n41", "n50", "n7"]
    assert found["n7"] == ["CPU of rank 7: 1 of 20 rounds gave other bits than most"]
    assert found["n11"] == ["CPU of rank 11: 20 of 20 rounds gave NaN or infinity"]
    assert found["n20"][0].startswith("CPU of rank 20: arithmetic 4") and "in the median" in found["n20"][0]
    rows = judgement.table(devices, found)
    assert [row[0] for row in rows[:7]] == ["n11", "n20", "n21", "n40", "n41", "n50", "n7"] and rows[7][-1] == "ok"


def test_a_link_is_slow_if_its_fastest_transfer_is():
    devices = measured(3, nodes=4)
    for device in devices[2:]:
        for one in device.rounds:
            one["link"] *= 0.1 if one["from"] in (2, 3) else 1.0
    assert judgement.problems(devices, **LIMITS) == {}  # Slow between each other, not to the rest.
    for one in devices[3].rounds:
        one["link"] = 0.1
    found = judgement.problems(devices, **LIMITS)
    assert sorted(found) == ["n3"] and found["n3"][0].startswith("CPU of rank 3: receives at most 0.1 GB/s, and 1.")


def test_devices_of_two_kinds_are_not_compared_and_a_draw_names_both():
    devices = measured(2, nodes=3)
    other = Device(rank=3, node="n3", name="CPU", kind="Q", rounds=[{"hash": "bb", "finite": True, "arithmetic": 9.0}])
    assert judgement.problems([*devices, other], **LIMITS) == {}
    for one in devices[1].rounds:
        one["hash"] = "cc"
    assert sorted(judgement.problems(devices[:2], **LIMITS)) == ["n0", "n1"]


@pytest.mark.slow
def test_results_of_an_earlier_burnin_in_the_folder_are_not_read(tmp_path):
    """Rank 1 starts before rank 0, whose old file it sees; rank 2 does not start."""
    old = [{"node": "old", "token": "a"}, {"repeats": "a"}, {"started": [{"token": "a"}] * 3}, {"rounds": []}]
    for rank in range(3):
        lines = [json.dumps(record) for record in [*old, {"end": True}]]
        (tmp_path / f"rank-{rank:05d}.jsonl").write_text("\n".join(lines) + "\n")
    end, met, folders = time.monotonic() + 3.0, {}, {}

    def run(rank):
        folders[rank] = exchange.Folder(tmp_path, rank)
        met[rank] = folders[rank].meet({"node": f"n{rank}"}, 3, end + 60.0 * rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (1, 0)]
    threads[0].start()
    time.sleep(0.5)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert met[0] == met[1] and [one and one["node"] for one in met[0]] == ["n0", "n1", None]
    folders[1].write({"end": True})
    for folder in folders.values():
        assert [bool(folder.read(rank)) for rank in range(3)] == [True, True, False]
        assert folder.read(1)[-1] == {"end": True} and "end" not in folder.read(0)[-1]
