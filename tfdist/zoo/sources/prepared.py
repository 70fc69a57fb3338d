"""Images that `tfdist prepare --to=raw` or `--to=jpeg` has written."""

import tensorflow as tf

from tfdist.config import paths
from tfdist.data.cache import example_files
from tfdist.zoo import splits
from tfdist.zoo.sources.files import decoding, file_source


class prepared(file_source.FileSource):
    """Images that `tfdist prepare --config=... --to=raw|jpeg --size=... --output=PATH` has written.

    Args:
        split: a split that was prepared, with or without a slice: "train[:90%]".
        path: the folder; variables are expanded.
        decode: 1 (grey) or 3 (colour): decode JPEGs of one size, --size=HEIGHTxWIDTH; 0: "image" is a string.

    A source of the columns that the source of the config had. "image" is: with --to=raw --size=HEIGHTxWIDTH, uint8
    [n, height, width, channels]; with --to=raw and one number, string [n], the bytes of the pixels, with
    "image_shape" int32 [n, 3]; with --to=jpeg, string [n]. `tfdist.zoo.inception:image` takes each.

    Raises:
        FileNotFoundError: there is no prepared split in `path`.
        ValueError: the split does not exist, or `decode` does not fit its files.
    """

    def __init__(self, split: str, *, path: str, decode: int = 0):
        root = paths.local(path, "path")
        title = f"prepared {path!r}"
        folders = sorted(folder for folder in root.glob("*") if folder.suffix != example_files.WRITING)
        found = {folder.name: example_files.read_manifest(folder) for folder in folders}
        found = {name: manifest for name, manifest in found.items() if manifest and "made" in manifest}
        if not found:
            raise FileNotFoundError(
                f"{title}: there is no prepared split in {str(root.absolute())!r}. Write it with `tfdist prepare "
                "--config=... --to=raw --size=256x256 --output=FOLDER`, or --to=jpeg."
            )
        part = splits.resolve(split, {name: manifest["examples"] for name, manifest in found.items()}, source=title)
        manifest = found[part.name]
        self._made, self._bytes = manifest["made"], manifest["bytes"]
        if decode not in (0, 1, 3) or (decode and (self._made["to"] != "jpeg" or isinstance(self._made["size"], int))):
            raise ValueError(
                f"{title}: decode is 0, or 1 or 3 channels for JPEGs of one size, --to=jpeg --size=HEIGHTxWIDTH. "
                f"Received: {decode!r} for {self._made['to']} of size {self._made['size']}"
            )
        files = [str(root / part.name / name) for name in sorted(self._bytes)]
        super().__init__(title, part, files, "Remove the folder and prepare it again.")
        self._columns = example_files.open_files(root / part.name)
        self._decoded = (*self._made["size"], decode) if decode else None
        self.num_classes, self.classes = manifest.get("num_classes"), manifest.get("classes")

    def load(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], from the files."""
        batch = example_files.gather(self._columns, ids + self.part.start)
        if self._decoded:
            spec = tf.TensorSpec(self._decoded, tf.uint8)
            batch["image"] = decoding.decode_each(
                lambda image: tf.ensure_shape(tf.io.decode_jpeg(image, channels=spec.shape[-1]), spec.shape),
                batch["image"],
                spec,
            )
        return batch

    def check(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the images, of JPEGs the sizes when decoded."""
        images = example_files.gather(self._columns, ids + self.part.start)["image"]
        return decoding.sizes(tf.io.decode_jpeg, images) if self._made["to"] == "jpeg" else images

    def place(self, example: int) -> str:
        """Returns where an image is, for messages."""
        return f"{self.name}: image {self.part.start + example} of the split {self.part.name!r}"

    def fingerprint(self) -> str:
        """Returns a hash of what the files were made of, and of their sizes."""
        return file_source.digest(repr((sorted(self._made.items()), sorted(self._bytes.items()), self.part)))
