"""The test set of --dataset synthetic, made again in numpy from its description in ds_synthetic.c."""

import numpy

PLACES = 1 << 18
CLASS_STRIDE = 162013
PURPOSE, STREAM_BANK, STREAM_TEST = 3, 0, 2


def philox(seed, stream, blocks):
    """Philox4x32-10: [len(blocks)][4] words."""
    low = numpy.uint64(0xFFFFFFFF)
    shift = numpy.uint64(32)
    blocks = numpy.asarray(blocks, dtype=numpy.uint64)
    c = [blocks & low, blocks >> shift, numpy.full_like(blocks, PURPOSE), numpy.full_like(blocks, stream)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first = c[0] * numpy.uint64(0xD2511F53)
        second = c[2] * numpy.uint64(0xCD9E8D57)
        c = [
            (second >> shift) ^ c[1] ^ numpy.uint64(key[0]),
            second & low,
            (first >> shift) ^ c[3] ^ numpy.uint64(key[1]),
            first & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return numpy.stack(c, axis=1)


def test_set(seed, count, classes, shape):
    """Images [count][c][h][w] in f32, and labels [count]."""
    pixels = int(numpy.prod(shape))
    words = philox(seed, STREAM_BANK, range((PLACES + pixels + 3) // 4)).reshape(-1)
    bank = ((words >> numpy.uint64(8)).astype(numpy.float32) * numpy.float32(2.0**-24))[: PLACES + pixels]
    images = numpy.empty((count, pixels), dtype=numpy.float32)
    labels = numpy.empty(count, dtype=numpy.int64)
    for i, word in enumerate(philox(seed, STREAM_TEST, range(count))):
        label = int(word[0]) * classes >> 32
        noise, pattern = int(word[1]) % PLACES, label * CLASS_STRIDE % PLACES
        brightness = numpy.float32(0.125) * numpy.float32(label + 0.5) / numpy.float32(classes)
        images[i] = (
            numpy.float32(0.5) * bank[noise : noise + pixels]
            + numpy.float32(0.375) * bank[pattern : pattern + pixels]
            + brightness
        )
        labels[i] = label
    return images.reshape(count, *shape), labels
