"""Images that `tfdist prepare --size=256` has written."""

import tensorflow as tf

from tfdist.config import paths
from tfdist.data.cache import example_files
from tfdist.zoo import splits
from tfdist.zoo.sources.files import decoding, file_source


class prepared(file_source.FileSource):
    """Images that `tfdist prepare --config=... --size=256 --output=PATH` has written.

    Args:
        split: a split that was prepared, with or without a slice: "train[:90%]".
        path: the folder; variables are expanded.

    A source of the columns that the source of the config had; "image" is string [n], JPEGs, which
    `tfdist.zoo.inception:image` takes.

    Raises:
        FileNotFoundError: there is no prepared split in `path`.
        ValueError: the split does not exist.
    """

    def __init__(self, split: str, *, path: str):
        root = paths.local(path, "path")
        title = f"prepared {path!r}"
        folders = sorted(folder for folder in root.glob("*") if folder.suffix != example_files.WRITING)
        found = {folder.name: example_files.read_manifest(folder) for folder in folders}
        found = {name: manifest for name, manifest in found.items() if manifest and "made" in manifest}
        if not found:
            raise FileNotFoundError(
                f"{title}: there is no prepared split in {str(root.absolute())!r}. Write it with `tfdist prepare "
                "--config=... --size=256 --output=FOLDER`."
            )
        part = splits.resolve(split, {name: manifest["examples"] for name, manifest in found.items()}, source=title)
        manifest = found[part.name]
        self._made, self._bytes = manifest["made"], manifest["bytes"]
        files = [str(root / part.name / name) for name in sorted(self._bytes)]
        super().__init__(title, part, files, "Remove the folder and prepare it again.")
        self._columns = example_files.open_files(root / part.name)
        self.num_classes, self.classes = manifest.get("num_classes"), manifest.get("classes")

    def load(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], from the files."""
        return example_files.gather(self._columns, ids + self.part.start)

    def check(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the sizes of the images when decoded."""
        images = example_files.gather(self._columns, ids + self.part.start)["image"]
        return decoding.sizes(tf.io.decode_jpeg, images)

    def place(self, example: int) -> str:
        """Returns where an image is, for messages."""
        return f"{self.name}: image {self.part.start + example} of the split {self.part.name!r}"

    def fingerprint(self) -> str:
        """Returns a hash of what the files were made of, and of their sizes."""
        return file_source.digest(repr((sorted(self._made.items()), sorted(self._bytes.items()), self.part)))
