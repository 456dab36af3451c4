"""Which libcudnn is loaded, and which is refused: no library needs to be installed for it, nor a GPU."""

import _ctypes

import pytest
from gpu_standin import standin_gpu
from messages import says

from rnnkit import BackendError
from rnnkit.cuda import cudnn

SONAME = "libcudnn-of-nobody.so.9"  # which no system has


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No library is loaded or found: a test may put one into the folder."""
    monkeypatch.setattr(cudnn, "_SONAME", SONAME)
    for variable in ("RNNKIT_CUDNN", "CONDA_PREFIX", "CUDNN_PATH"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "lib").mkdir()
    return tmp_path


def test_a_library_that_is_not_there(monkeypatch, tmp_path):
    other = tmp_path / "libcudnn.so.9"
    other.write_text("not a library")
    for path in (other, tmp_path / "nothing"):
        monkeypatch.setenv("RNNKIT_CUDNN", str(path))
        with pytest.raises(BackendError, match=says("load: cuDNN", "library", path)):
            cudnn.load.__wrapped__()


@pytest.mark.parametrize("variable", ["CONDA_PREFIX", "CUDNN_PATH"])
def test_a_broken_library_is_not_passed_over(monkeypatch, nowhere, variable):
    """Another one may be found further on, and would be another than the one that was meant."""
    monkeypatch.setenv(variable, str(nowhere))
    path = nowhere / "lib" / SONAME
    path.write_text("not a library")
    with pytest.raises(BackendError, match=says("load: cuDNN", "library", path)):
        cudnn.load.__wrapped__()


@pytest.mark.parametrize("variable", ["CONDA_PREFIX", "CUDNN_PATH"])
def test_what_is_found_is_loaded(monkeypatch, nowhere, variable):
    monkeypatch.setenv(variable, str(nowhere))
    (nowhere / "lib" / SONAME).symlink_to(_ctypes.__file__)  # a library, but not of NVIDIA
    with pytest.raises(BackendError, match=says("load: cuDNN", "cudnnGetVersion", "version 9")):
        cudnn.load.__wrapped__()


def test_no_library_at_all(monkeypatch, nowhere):
    monkeypatch.setenv("CUDNN_PATH", str(nowhere))
    facts = "installed", "pip install 'rnnkit[cuda13]'", "cuda12", "RNNKIT_CUDNN"
    with pytest.raises(BackendError, match=says(f"load: {cudnn._SONAME}", *facts)):
        cudnn.load.__wrapped__()


def test_a_library_of_another_kind(monkeypatch):
    monkeypatch.setenv("RNNKIT_CUDNN", "libm.so.6")
    with pytest.raises(BackendError, match=says("load: cuDNN", "cudnnGetVersion", "version 9")):
        cudnn.load.__wrapped__()


def test_a_library_of_another_version():
    with standin_gpu() as standin:
        standin.version = 8907
        with pytest.raises(BackendError, match=says("load: cuDNN", "version 9", 8907)):
            cudnn.Library(standin.dll())


def test_a_library_without_the_functions_of_networks():
    with standin_gpu() as standin:
        standin.cudnnAdvVersionCheck = lambda: 3009  # as the copy answers that comes without libcudnn_adv
        with pytest.raises(cudnn.NotSupportedError, match=says("cudnnAdvVersionCheck: cuDNN 91900")):
            cudnn.Library(standin.dll())
