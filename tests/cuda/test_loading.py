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


def assert_refused(*facts, where="load: cuDNN"):
    with pytest.raises(BackendError, match=says(where, *facts)):
        cudnn.load.__wrapped__()


def test_chosen_library_that_cannot_be_loaded_is_refused(monkeypatch, tmp_path):
    (tmp_path / "broken").write_text("not a library")
    for name in ("broken", "missing"):
        monkeypatch.setenv("RNNKIT_CUDNN", str(tmp_path / name))
        assert_refused("library", tmp_path / name)
    monkeypatch.setenv("RNNKIT_CUDNN", "libm.so.6")
    assert_refused("cudnnGetVersion", "version 9")


@pytest.mark.parametrize("variable", ["CONDA_PREFIX", "CUDNN_PATH"])
def test_library_that_is_found_is_loaded_and_not_passed_over(monkeypatch, nowhere, variable):
    """Another one may be found further on, and would be another than the one that was meant."""
    monkeypatch.setenv(variable, str(nowhere))
    path = nowhere / "lib" / SONAME
    path.write_text("not a library")
    assert_refused("library", path)
    path.unlink()
    path.symlink_to(_ctypes.__file__)  # a library, but not of NVIDIA
    assert_refused("cudnnGetVersion", "version 9")


def test_missing_library_is_an_error_with_the_cure(monkeypatch, nowhere):
    monkeypatch.setenv("CUDNN_PATH", str(nowhere))
    facts = "installed", "pip install 'rnnkit[cuda13]'", "cuda12", "RNNKIT_CUDNN"
    assert_refused(*facts, where=f"load: {cudnn._SONAME}")


def test_library_of_another_version_is_refused():
    with standin_gpu() as standin:
        standin.version = 8907
        with pytest.raises(BackendError, match=says("load: cuDNN", "version 9", 8907)):
            cudnn.Library(standin.dll())


def test_library_without_the_functions_of_networks_is_refused():
    with standin_gpu() as standin:
        standin.cudnnAdvVersionCheck = lambda: 3009  # as the copy answers that comes without libcudnn_adv
        with pytest.raises(cudnn.NotSupportedError, match=says("cudnnAdvVersionCheck: cuDNN 91900")):
            cudnn.Library(standin.dll())
