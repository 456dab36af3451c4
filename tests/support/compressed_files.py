"""What `decompress` refuses."""

import pytest
from messages import says

from rnnkit.language_model.compressor import decompress


def assert_not_decompressed(data, model, *facts, argument="file"):
    """Raise unless `decompress` refuses the data with an error about the argument that has these facts."""
    with pytest.raises(ValueError, match=says(f"decompress: {argument}", *facts)):
        decompress(data, model)
