"""Digits to train on: the bundled ones, and MNIST's files."""

import gzip
import struct

import numpy as np
import pytest
import torch

from simlib import digits


def write_idx(path, array):
    """An IDX file of bytes, packed where the name says so."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wb") as file:
        file.write(header + array.tobytes())


def write_mnist(folder, ending="", labels=7):
    """Four small files under MNIST's names; images of 7, 4 examples."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 7), ("t10k", 4)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        write_idx(folder / f"{part}-images-idx3-ubyte{ending}", images)
        count = labels if part == "train" else count
        write_idx(
            folder / f"{part}-labels-idx1-ubyte{ending}", np.arange(count, dtype=np.uint8) % 10
        )


def test_the_bundled_digits_are_split_into_1500_and_297_and_repeat():
    train, test = digits.load()
    images, labels = train.tensors
    assert (images.shape, images.dtype) == ((1500, 1, 28, 28), torch.float32)
    assert (labels.dtype, labels.unique().tolist()) == (torch.int64, list(range(10)))
    assert len(test) == 297
    assert 0 <= images.min() and images.max() <= 1
    assert torch.equal(images, digits.load()[0].tensors[0])
    assert not torch.equal(images, digits.load(seed=1)[0].tensors[0])


def test_no_example_is_in_both_parts():
    train, test = (part.tensors[0].flatten(1) for part in digits.load())
    assert len(torch.cat([train, test]).unique(dim=0)) == 1797


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_mnist_is_read_from_its_files(tmp_path, ending):
    write_mnist(tmp_path, ending)
    train, test = digits.load_mnist(tmp_path)
    raw = digits.read_idx(tmp_path / f"train-images-idx3-ubyte{ending}")
    assert torch.equal((train.tensors[0][:, 0] * 255).round().to(torch.uint8), torch.tensor(raw))
    assert train.tensors[1].tolist() == list(range(7))
    assert (len(test), test.tensors[0].shape) == (4, (4, 1, 28, 28))


def test_a_missing_file_is_named(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no .*t10k-labels-idx1-ubyte, and no"):
        digits.load_mnist(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\x1f\x8b\x08\x00rest", b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00\x00\x00\x00"]
)
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="is not an IDX file of bytes"):
        digits.read_idx(tmp_path / "file")


@pytest.mark.parametrize("end", [7, 50, 787 + 12])
def test_a_file_cut_short_or_too_long_is_refused(tmp_path, end):
    write_idx(tmp_path / "whole", np.zeros((1, 28, 28), dtype=np.uint8))
    data = (tmp_path / "whole").read_bytes() + b"more"
    (tmp_path / "cut").write_bytes(data[:end])
    with pytest.raises(ValueError, match="damaged,? (or )?incomplete"):
        digits.read_idx(tmp_path / "cut")


def test_images_and_labels_that_differ_in_number_are_refused(tmp_path):
    write_mnist(tmp_path, labels=5)
    with pytest.raises(ValueError, match=r"shape \(7, 28, 28\), and .* has \(5,\)"):
        digits.load_mnist(tmp_path)


def test_images_of_two_sizes_none_and_strange_labels_are_refused(tmp_path):
    write_mnist(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.array([1, 2, 12, 3], dtype=np.uint8))
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte has the label 12"):
        digits.load_mnist(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(4, dtype=np.uint8))
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((4, 20, 20), dtype=np.uint8))
    with pytest.raises(ValueError, match=r"\(1, 28, 28\) for training, but \(1, 20, 20\)"):
        digits.load_mnist(tmp_path)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(0, dtype=np.uint8))
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((0, 28, 28), dtype=np.uint8))
    with pytest.raises(ValueError, match="n > 0"):
        digits.load_mnist(tmp_path)


@pytest.mark.parametrize("harm", [lambda d: b"<!DOCTYPE html>", lambda d: d[: len(d) // 2]])
def test_a_packed_file_that_cannot_be_unpacked_is_named(tmp_path, harm):
    write_mnist(tmp_path, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz cannot be decompressed"):
        digits.load_mnist(tmp_path)
