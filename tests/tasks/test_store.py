"""A run in a store: continued by another machine, whatever became of the first, and by one machine at a time.

A machine is a pair of folders here, for runs and for data; another one's processes are of another `place`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from components.errors import UserError
from components.params.root import RunParams
from components.storage import content_hash, read_json, write_sealed, write_text
from tasks import lease, objects, store
from tasks.objects import Objects
from tasks.retain import retain
from tasks.run import find_run, lock
from tasks.stage import read_stages
from tasks.store import Store, hold
from tasks.summary import finished_iterations
from tests.tasks.pipeline import fingerprints, new_run, train


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(objects, "BACK_OFF_SECONDS", (0.01,))
    monkeypatch.setattr(store, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.01)
    yield
    store._open.clear()


@pytest.fixture(scope="module")
def machine_data(finished, tmp_path_factory):
    """A machine's data folder, with what the finished run's machine had made."""
    folder = tmp_path_factory.mktemp("machine") / "data"
    shutil.copytree(finished.params.run.data_dir, folder)
    return folder


def _begin(params, data, folder, url, stop_after=None):
    """Runs a machine's part of the run; every upload is done when it returns."""
    run = new_run(params, data, folder, run={"store": url})
    with lock(run, url):
        train(run, stop_after)
    return run


def _url(folder: Path) -> str:
    return f"file://{folder}/store"


def _stages(path: Path, number: int, *names: str, shard: str = "") -> None:
    """Writes what stages leave behind, and tells the store as they do; `update_policy` writes a folder."""
    folder = path / "iterations" / f"{number:04d}" / shard
    for name in names:
        output = folder / ("policy" if name == "update_policy" else f"{name}.parquet")
        for file in (output / "a.bin", output / "below" / "b.bin") if name == "update_policy" else (output,):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{name} {number} {file.name}")
        stages = read_stages(folder)
        seconds = 1.0 + sum(entry["seconds"] for entry in stages.values())
        entry = {"inputs": {}, "outputs": {output.name: content_hash(output)}, "seconds": seconds, "metrics": {}}
        write_sealed(folder / "manifest.json", stages | {name: entry})
        if held := store.store_of(path):
            held.notify(folder / "manifest.json")


def _folder(tmp_path: Path, machine: str) -> Path:
    """A run's folder on a machine."""
    path = tmp_path / machine / "r"
    path.mkdir(parents=True, exist_ok=True)
    if not (path / "manifest.json").exists() and machine == "a":
        write_sealed(path / "manifest.json", {"run_id": "r"})
    return path


def _put_files(monkeypatch) -> list[str]:
    """Names of the outputs that are uploaded from now on."""
    put, names = Objects.put, []
    monkeypatch.setattr(Objects, "put", lambda self, name, path: (names.append(name), put(self, name, path))[1])
    return names


def test_another_machine_continues_bit_for_bit_when_the_first_is_gone(params, machine_data, finished, tmp_path, caplog):
    url = _url(tmp_path)
    run = _begin(params, machine_data, tmp_path / "a", url, stop_after=15)
    done = {(k, name): entry["seconds"] for k in (0, 1) for name, entry in read_stages(run.iteration(k)).items()}
    shutil.rmtree(tmp_path / "a")
    other = _begin(params, tmp_path / "other-data", tmp_path / "b", url)
    assert not (tmp_path / "other-data" / "warmup").exists()  # it came from the store
    after = {(k, name): entry["seconds"] for k in (0, 1) for name, entry in read_stages(other.iteration(k)).items()}
    assert len(done) == 15
    assert all(after[key] == seconds for key, seconds in done.items())
    fetched, expected = fingerprints(other), fingerprints(finished)
    assert {name: expected[name] for name in fetched} == fetched  # what nobody asked for stays in the store
    everything = find_run(f"{url}/r", tmp_path / "c")
    for k in (0, 1):
        for entry in read_stages(everything.iteration(k)).values():
            assert all(store.has_hash(everything.iteration(k) / name, h) for name, h in entry["outputs"].items())
    assert fingerprints(everything) == expected
    assert other.metrics_path.read_bytes() == everything.metrics_path.read_bytes()
    assert not caplog.records


def test_what_the_store_has_is_not_uploaded_again_and_what_it_lacks_is(tmp_path, monkeypatch):
    url, path = _url(tmp_path), _folder(tmp_path, "a")
    with hold(path, url):
        _stages(path, 0, "scored", "roots", "update_policy", "record")
        _stages(path, 1, "scored")
    names = _put_files(monkeypatch)
    with hold(path, url):
        pass
    assert names == []
    (tmp_path / "store/r/iterations/0000/manifest.json").unlink()
    (tmp_path / "store/r/iterations/0000/roots.parquet").unlink()
    with hold(path, url):
        pass
    assert "iterations/0000/roots.parquet" in names
    assert not any("0001" in name for name in names)
    assert (tmp_path / "store/r/iterations/0000/roots.parquet").exists()


def test_outputs_are_there_before_the_manifest_that_names_them(tmp_path, monkeypatch):
    url, path, order = _url(tmp_path), _folder(tmp_path, "a"), []
    put, write = Objects.put, Objects.write
    monkeypatch.setattr(Objects, "put", lambda self, name, path: (order.append(name), put(self, name, path)))
    monkeypatch.setattr(Objects, "write", lambda self, name, content: (order.append(name), write(self, name, content)))
    with hold(path, url):
        _stages(path, 0, "scored", "update_policy")
    last = max(place for place, name in enumerate(order) if name == "iterations/0000/manifest.json")
    assert order.index("iterations/0000/policy") < last
    assert order.index("iterations/0000/scored.parquet") < order.index("iterations/0000/manifest.json")


def test_only_what_is_asked_for_is_brought_and_only_with_the_right_content(tmp_path, caplog):
    url, path = _url(tmp_path), _folder(tmp_path, "a")
    with hold(path, url):
        _stages(path, 0, "scored", "roots", "update_policy")
    (tmp_path / "store/r/iterations/0000/roots.parquet").write_bytes(b"torn")
    other = _folder(tmp_path, "b")
    first = other / "iterations" / "0000"
    with hold(other, url):
        assert [p.name for p in first.iterdir()] == ["manifest.json"]
        assert store.is_there(first / "policy")
        assert (first / "policy/below/b.bin").read_text() == "update_policy 0 b.bin"
        assert not store.is_there(first / "roots.parquet")
        assert "r/iterations/0000/roots.parquet is damaged" in caplog.text
        assert not store.is_there(first / "of_no_stage.parquet")
        _stages(other, 0, "roots")  # made anew
    assert (tmp_path / "store/r/iterations/0000/roots.parquet").read_bytes() != b"torn"
    assert {p.name for p in first.iterdir()} == {"manifest.json", "policy", "roots.parquet"}


def test_retention_drops_in_the_store_what_this_machine_and_another_made(params, tmp_path):
    url = _url(tmp_path)
    for number, machine in enumerate("ab"):
        run = new_run(params, tmp_path / "data", tmp_path / machine, run={"store": url, "keep_policies": 1})
        with lock(run, url):
            _stages(run.path, number, "verified", shard="shards/01-of-02")
            _stages(run.path, number, "generated", "update_policy", "record")
            with run.metrics_path.open("a") as stream:
                stream.write(json.dumps({"iteration": number, "eval/accuracy": None}) + "\n")
            retain.fn(run.path, number)
    there = {p.relative_to(tmp_path / "store/r").as_posix() for p in (tmp_path / "store/r").rglob("*.*")}
    assert {name for name in there if name.startswith("iterations/")} == {
        "iterations/0000/manifest.json", "iterations/0000/record.parquet",
        "iterations/0001/manifest.json", "iterations/0001/record.parquet",
        "iterations/0001/policy/a.bin", "iterations/0001/policy/below/b.bin",
    }  # fmt: skip


def test_a_store_that_is_away_delays_uploads_but_not_the_run(tmp_path, caplog):
    url, path = _url(tmp_path), _folder(tmp_path, "a")
    there, aside = tmp_path / "store", tmp_path / "aside"
    with hold(path, url):
        _stages(path, 0, "scored")
        there.rename(aside)
        there.write_text("in the way")
        _stages(path, 0, "roots", "update_policy")
    assert "is away" in caplog.text
    assert "to push it, continue the run here" in caplog.text
    with pytest.raises(UserError, match=r"run\.store: cannot reach file://.*/store/r .*--set run.store=null"):
        store.Store(f"{url}/r", path).start()
    there.unlink()
    aside.rename(there)
    with hold(path, url):
        pass
    assert (there / "r/iterations/0000/policy/a.bin").exists()
    assert read_stages(there / "r/iterations/0000") == read_stages(path / "iterations/0000")


def test_the_store_wins_where_another_machine_went_on(tmp_path, monkeypatch):
    url, path, other = _url(tmp_path), _folder(tmp_path, "a"), _folder(tmp_path, "b")
    with hold(path, url):
        _stages(path, 0, "scored")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_sync", lambda self: None)
        with hold(path, url):  # nothing of this is uploaded before the machine goes
            _stages(path, 0, "roots")
            _stages(path, 1, "record")
    with hold(other, url):
        _stages(other, 0, "roots", "update_policy")
    with hold(path, url):
        assert read_stages(path / "iterations/0000") == read_stages(other / "iterations/0000")
        assert read_stages(path / "iterations/0001") == {}
        assert store.is_there(path / "iterations/0000/policy")


@contextmanager
def _elsewhere(monkeypatch):
    """What happens inside happens on another machine."""
    with monkeypatch.context() as patch:
        patch.setattr(lease, "place", lambda: "elsewhere")
        yield


def test_one_machine_writes_at_a_time(params, tmp_path, monkeypatch):
    url = _url(tmp_path)
    run = new_run(params, tmp_path / "data", tmp_path / "a", run={"store": url})
    with lock(run, url):
        with _elsewhere(monkeypatch), pytest.raises(UserError, match=r"run r in file://.* is being written on .*pro"):
            new_run(params, tmp_path / "data", tmp_path / "b", run={"store": url})
        entry = json.loads((tmp_path / "store/r/.lease").read_text())
    assert not (tmp_path / "store/r/.lease").exists()

    entry["time"] = time.time() - lease.STALE_SECONDS - 1  # its machine went without a word
    (tmp_path / "store/r/.lease").write_text(json.dumps(entry))
    with _elsewhere(monkeypatch):
        new_run(params, tmp_path / "data", tmp_path / "b", run={"store": url})


def test_a_machine_that_lost_its_lease_stops(tmp_path):
    url, path = _url(tmp_path), _folder(tmp_path, "a")
    stop = pytest.raises(UserError, match=r"taken over by far-away \(process 7\); this process stops")
    with stop, hold(path, url):
        entry = json.loads((tmp_path / "store/r/.lease").read_text())
        entry |= {"token": "another", "host": "far-away", "pid": 7}
        write_text(tmp_path / "store/r/.lease", json.dumps(entry))  # whole, as a store's objects are
        with suppress(UserError):
            store.store_of(path).notify(path / "manifest.json")
        store.store_of(path)._thread.join(10)
        _stages(path, 0, "scored", "roots")
    assert not (tmp_path / "store/r/iterations").exists()
    assert json.loads((tmp_path / "store/r/.lease").read_text())["token"] == "another"


def test_a_lease_is_renewed_while_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.02)
    fs, path = fsspec.filesystem("file"), str(tmp_path / "lease")
    held = lease.Lease(fs, path, "run r")
    held.acquire()
    first = read_json(Path(path))["time"]
    deadline = time.monotonic() + 10
    while read_json(Path(path))["time"] == first and time.monotonic() < deadline:
        time.sleep(0.02)
    assert read_json(Path(path))["time"] > first
    held.release()
    assert not Path(path).exists()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("runs", "is no URL"),
        ("s3://key:secret@host/bucket", "credentials"),
        ("s3://bucket/runs?secret=1", "credentials"),
    ],
)
def test_store_must_be_a_url_without_credentials(url, reason):
    with pytest.raises(ValueError, match=reason):
        RunParams(store=url)


def test_two_runs_of_one_name_are_kept_apart(params, tmp_path):
    url = _url(tmp_path)
    new_run(params, tmp_path / "data", tmp_path / "a", run={"store": url, "seed": 1})
    mine = new_run(params, tmp_path / "data", tmp_path / "b")
    before = (mine.path / "params.yaml").read_bytes()
    with pytest.raises(UserError, match=r"/b/r and file://.*/store/r are two runs of one name"):
        find_run(f"{url}/r", tmp_path / "b")
    with pytest.raises(UserError, match="two runs of one name"):
        new_run(params, tmp_path / "data", tmp_path / "b", run={"store": url})
    assert (mine.path / "params.yaml").read_bytes() == before
    copy = find_run(f"{url}/r", tmp_path / "c")  # but what was brought to be read may be continued
    assert new_run(params, tmp_path / "data", tmp_path / "c", run={"store": url, "seed": 1}).path == copy.path


def test_unknown_kind_of_store_is_one_line(params, tmp_path):
    with pytest.raises(UserError, match=r"run\.store='nowhere://x'.*nowhere"):
        new_run(params, tmp_path / "data", tmp_path, run={"store": "nowhere://x"})


def test_no_run_there_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"no run in file://"):
        find_run(f"{_url(tmp_path)}/r", tmp_path / "runs")


KILLED = """
import os, signal, sys
from pathlib import Path
from tasks.run import Run, lock
from tests.tasks.pipeline import train
run = Run(Path(sys.argv[1]))
with lock(run, sys.argv[2]):
    train(run, 9)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def s3(monkeypatch, caplog):
    """A bucket on a server that speaks S3, on loopback."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    pytest.importorskip("s3fs")
    caplog.set_level("WARNING", "werkzeug")
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hush-hush",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with suppress(FileExistsError):  # the server's memory is the process's
        fsspec.filesystem("s3").mkdir("bucket")
    yield f"s3://bucket/{uuid4().hex}/runs"
    fsspec.filesystem("s3").clear_instance_cache()
    server.stop()


def test_run_killed_between_machines_on_s3(params, machine_data, finished, tmp_path, s3, caplog):
    run = new_run(params, machine_data, tmp_path / "a", run={"store": s3})
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED, str(run.path), s3]
    killed = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, timeout=600)
    assert killed.returncode == -signal.SIGKILL
    assert fsspec.filesystem("s3").exists(f"{s3}/r/.lease")  # nobody was left to give it back
    shutil.rmtree(tmp_path / "a")
    other = _begin(params, tmp_path / "other-data", tmp_path / "b", s3)
    assert fingerprints(other).items() <= fingerprints(finished).items()
    assert not fsspec.filesystem("s3").exists(f"{s3}/r/.lease")
    read = find_run(f"{s3}/r", tmp_path / "c")
    assert finished_iterations(read) == 2
    assert (read.iteration(1) / "policy" / "model.safetensors").exists()
    assert "hush-hush" not in caplog.text + (other.path / "params.yaml").read_text()


def test_s3_grants_one_lease(s3):
    fs = fsspec.filesystem("s3")
    one, two = (lease.Lease(fs, f"{s3}/lease", "run r") for _ in range(2))
    assert one._create()
    assert not two._create()


def test_missing_bucket_is_one_line(params, tmp_path, s3):
    with pytest.raises(UserError, match=r"run\.store: cannot reach s3://nowhere/r"):
        new_run(params, tmp_path / "data", tmp_path, run={"store": "s3://nowhere"})
