/* make_images.c - writes class folders of small JPEG and PNG images for the training tests:
 *   make_images DIR CLASSES IMAGES HEIGHT WIDTH VARY
 * IMAGES of each class, each up to VARY pixels higher and wider than HEIGHT x WIDTH. Classes differ
 * in the place of a bright stripe. */
#include <png.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <turbojpeg.h>

static void paint(uint8_t *pixels, int height, int width, int label, int image)
{
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < 3; c++)
                pixels[(y * width + x) * 3 + c] =
                    (uint8_t)(y / 4 % 4 == label % 4 ? 200 + c * 20
                                                     : (x * 7 + image * 31 + c * 40) % 128);
}

static int write_png(const char *path, const uint8_t *pixels, int height, int width)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (unsigned)width,
                       .height = (unsigned)height,
                       .format = PNG_FORMAT_RGB};
    return png_image_write_to_file(&image, path, 0, pixels, 0, NULL) ? 0 : 1;
}

static int write_jpeg(const char *path, const uint8_t *pixels, int height, int width)
{
    unsigned char *jpeg = NULL;
    unsigned long bytes = 0;
    tjhandle handle = tjInitCompress();
    FILE *file = fopen(path, "wb");
    int bad = handle == NULL || file == NULL ||
              tjCompress2(handle, pixels, width, 0, height, TJPF_RGB, &jpeg, &bytes, TJSAMP_420, 95,
                          TJFLAG_ACCURATEDCT) != 0;
    bad = bad || fwrite(jpeg, 1, bytes, file) != bytes;
    if (file != NULL)
        bad |= fclose(file) != 0;
    tjFree(jpeg);
    if (handle != NULL)
        bad |= tjDestroy(handle) != 0;
    return bad;
}

int main(int argc, char **argv)
{
    int numbers[5] = {0};
    int bad = argc != 7;
    for (int i = 0; i < 5 && !bad; i++)
        numbers[i] = atoi(argv[i + 2]);
    for (int label = 0; label < numbers[0] && !bad; label++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/class-%02d", argv[1], label);
        bad = mkdir(path, 0777) != 0;
        for (int image = 0; image < numbers[1] && !bad; image++) {
            int height = numbers[2] + image * 5 % (numbers[4] + 1);
            int width = numbers[3] + image * 3 % (numbers[4] + 1);
            uint8_t *pixels = malloc((size_t)height * (size_t)width * 3);
            if (pixels == NULL)
                return 1;
            paint(pixels, height, width, label, image);
            snprintf(path, sizeof path, "%s/class-%02d/%04d.%s", argv[1], label, image,
                     image % 2 ? "png" : "jpg");
            bad = (image % 2 ? write_png : write_jpeg)(path, pixels, height, width);
            free(pixels);
        }
    }
    if (bad)
        fprintf(stderr, "make_images: failed\n");
    return bad;
}
