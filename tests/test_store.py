"""What outlives a process: found again by digest, never trusted where others may write, never half-written."""

import json
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import funcgrad as fg
from funcgrad.cache.folders import bound, used
from funcgrad.cache.store import Store, digest
from funcgrad.partition.partition import fingerprint, partition


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_round_trip(tmp_path_factory, value):
    store = Store(tmp_path_factory.mktemp("cache") / "deep" / "folder")
    assert store.get("name") is None
    store.put("name", value)
    assert store.get("name") == value
    assert [p.suffix for p in store.folder.iterdir() if p.name != "lock"] == [".json"]


def test_off_remembers_nothing():
    store = Store(None)
    store.put("name", 1)
    assert store.get("name") is None


def test_a_damaged_entry_counts_as_none(tmp_path):
    store = Store(tmp_path / "cache")
    store.put("name", [1, 2])
    (store.folder / "name.json").write_text("[1, ")
    assert store.get("name") is None
    store.put("name", [3])
    assert store.get("name") == [3]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs POSIX permissions")
def test_a_folder_others_may_write_to_is_not_trusted(tmp_path):
    store = Store(tmp_path / "cache")
    store.put("name", 1)
    store.folder.chmod(0o777)
    for use in (lambda: store.get("name"), lambda: store.put("name", 2)):
        with pytest.raises(fg.CacheTrustError, match="chmod 700"):
            use()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(fg.CacheTrustError, match="cannot be made") as caught:
        Store(tmp_path / "file" / "cache").put("name", 1)
    assert "off" in caught.value.fix


def test_digests_differ_where_texts_do():
    assert len({digest("a", "b"), digest("ab"), digest("a"), digest("b", "a")}) == 4


def joint(f, *args):
    return fg.grad_compiled(f).program(*args).joint


def test_a_known_partition_is_the_partition():
    j = joint(lambda x: (x.exp().sin() * x).sum(), torch.randn(5))
    first = partition(j)
    again = partition(j, known=sorted(first.kept))
    assert str(first) == str(again)


def test_fingerprints():
    x = torch.randn(5)
    f = lambda x: (x.exp() * 2).sum()  # noqa: E731
    j = joint(f, x)
    exp = next(n for n in j.graph.fx.nodes if "exp" in n.name)
    assert fingerprint(j, {}) == fingerprint(joint(f, x), {})
    assert fingerprint(j, {}) != fingerprint(joint(f, x[:3]), {})
    assert fingerprint(j, {}) != fingerprint(joint(lambda x: (x.exp() * 3).sum(), x), {})
    assert fingerprint(j, {}) != fingerprint(j, {exp: 8.0})
    assert fingerprint(j, {}) != fingerprint(j, {}, is_split=False)


PROGRAM = """
import sys, torch, funcgrad as fg
grads = fg.grad_compiled(lambda x: (torch.layer_norm(x.exp(), (5,)).max(0).values * x).sum())(torch.arange(5.0))
print(grads.tolist(), "scipy.sparse" in sys.modules)
"""


def test_a_second_process_reuses_the_partition(tmp_path):
    def run():
        env = {**os.environ, "FUNCGRAD_CACHE_DIR": str(tmp_path / "cache")}
        return subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, check=True
        ).stdout

    first, second = run(), run()
    assert first.split("]")[0] == second.split("]")[0]
    assert first.endswith("True\n") and second.endswith("False\n")
    entries = [p for p in (tmp_path / "cache").glob("*.json")]
    assert len(entries) == 1 and json.loads(entries[0].read_text())


def test_folder_keeps_what_was_used_last(tmp_path):
    for i in range(5):
        file = tmp_path / f"{i}.so"
        file.write_bytes(bytes(100))
        os.utime(file, (i, i))
    used(tmp_path / "0.so")
    bound(tmp_path, 300)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["0.so", "3.so", "4.so"]


def test_files_in_use_are_kept(tmp_path):
    (tmp_path / "new.so").write_bytes(bytes(100))
    bound(tmp_path, 10)
    assert [f.name for f in tmp_path.iterdir()] == ["new.so"]
