"""Images that `tfdist prepare --to=raw` or `--to=jpeg` has written."""

import hashlib

import numpy as np
import tensorflow as tf

from tfdist.config import paths
from tfdist.data.cache import example_files
from tfdist.zoo import splits
from tfdist.zoo.sources.files import decoding, from_disk


class prepared:
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
        made = manifest["made"]
        if decode not in (0, 1, 3) or (decode and (made["to"] != "jpeg" or isinstance(made["size"], int))):
            raise ValueError(
                f"{title}: decode is 0, or 1 or 3 channels for JPEGs of one size, --to=jpeg --size=HEIGHTxWIDTH. "
                f"Received: {decode!r} for {made['to']} of size {made['size']}"
            )
        self._part, self._folder, self._manifest, self._title = part, root / part.name, manifest, title
        self._columns = example_files.open_files(self._folder)
        self._decoded = (*made["size"], decode) if decode else None
        self.num_classes, self.classes = manifest.get("num_classes"), manifest.get("classes")

    def __len__(self) -> int:
        return self._part.stop - self._part.start

    def __repr__(self) -> str:
        part, made = self._part, self._manifest["made"]
        size = made["size"] if isinstance(made["size"], int) else "x".join(map(str, made["size"]))
        return f"{self._title}, {part.name}[{part.start}:{part.stop}]: {len(self)} images, {made['to']}, {size} pixels"

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], as {column: [n, ...]}."""
        batch = example_files.gather(self._columns, ids + self._part.start)
        return {**batch, "image": self._decode(batch["image"])} if self._decoded else batch

    def verify(self) -> None:
        """Reads, and decodes if JPEGs, all images; raises ValueError, which names the first that cannot be read."""
        for example in range(self._part.start, self._part.stop):
            try:
                image = self._columns["image"].read(np.array([example]))[0]
                if self._manifest["made"]["to"] == "jpeg":
                    tf.io.decode_jpeg(image)
            except (tf.errors.OpError, OSError) as error:
                raise ValueError(
                    f"{self._title}: image {example} in {str(self._folder)!r} cannot be read: "
                    f"{from_disk.reason(error)} Remove the folder and prepare it again."
                ) from None

    def fingerprint(self) -> str:
        """Returns a hash of what the files were made of, and of their sizes."""
        text = repr((sorted(self._manifest["made"].items()), sorted(self._manifest["bytes"].items()), self._part))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def modified(self) -> str:
        """Returns a hash of the sizes and times of the files."""
        names = sorted(self._manifest["bytes"])
        return from_disk.fingerprint(len(names), lambda number: str(self._folder / names[number]))

    def _decode(self, images: tf.Tensor) -> tf.Tensor:
        def decode(content: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(tf.io.decode_jpeg(content, channels=self._decoded[-1]), self._decoded)

        return decoding.decode_each(decode, images, tf.TensorSpec(self._decoded, tf.uint8))
