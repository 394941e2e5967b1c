from __future__ import annotations

from inferencemesh.sim.records import History


def test_a_repeated_name_gets_its_number_of_arrival() -> None:
    history = History()
    keys = [history.open(name, 1.0).key for name in ("a", "b", "a", "a")]
    assert keys == ["a", "b", "a#3", "a#4"]
    assert list(history.documents(0.0)) == keys
    assert list(history.documents(0.0, "a")) == ["a", "a#3", "a#4"]
    assert history.totals.received == 4


def test_old_records_are_forgotten() -> None:
    history = History(kept=3)
    for number in range(10):
        history.open(str(number), 1.0)
    assert list(history.documents(0.0)) == ["7", "8", "9"]
    assert history.totals.received == 10
    history.clear()
    assert history.documents(0.0) == {}
    assert history.totals.received == 0


def test_instants_count_from_the_arrival() -> None:
    record = History().open("a", 10.0)
    record.started_at, record.first_byte_at, record.left_at, record.ended_at = 10.1, 10.2, 10.3, 10.4
    record.state = "aborted"
    document = record.document(epoch_at=4.0)
    assert document["arrived_ms"] == 6000.0
    assert [document[f"{name}_ms"] for name in ("started", "first_byte", "left", "aborted", "ended")] == [
        100.0,
        200.0,
        300.0,
        400.0,
        400.0,
    ]
    record.state = "completed"
    assert record.document(4.0)["aborted_ms"] is None
