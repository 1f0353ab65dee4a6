/* Alignment, zeroing, overflow, counters and large buffers; also shapes and element types. */
#include <sys/wait.h>
#include <unistd.h>

#include "ddp/memory.h"
#include "harness.h"

static void blocks_are_aligned_and_zeroed(void **state)
{
    (void)state;
    for (size_t count = 0; count < 300; count += 7) {
        unsigned char *block;
        CHECK_OK(DDP_ALLOC(block, count));
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % DDP_ALIGN_BYTES, 0);
        for (size_t i = 0; i < count; i++)
            assert_int_equal(block[i], 0);
        memset(block, 0xff, count);
        ddp_free(block);
    }
    ddp_free(NULL);
}

static void impossible_sizes_fail(void **state)
{
    void *block = NULL;

    (void)state;
    CHECK_FAILS(ddp_alloc_bytes(SIZE_MAX / 2, 4, &block), DDP_ERR_NOMEM, "more than memory can");
    CHECK_FAILS(ddp_alloc_bytes(SIZE_MAX - 8, 1, &block), DDP_ERR_NOMEM, "more than memory can");
    CHECK_FAILS(ddp_large_alloc(SIZE_MAX - 8, &block), DDP_ERR_NOMEM, "more than memory can");
    CHECK_FAILS(ddp_large_alloc((size_t)1 << 62, &block), DDP_ERR_NOMEM, "map");
    assert_null(block);
}

static void allocations_are_counted(void **state)
{
    char *block;
    void *large;

    (void)state;
    ddp_mem_freeze();
    assert_int_equal(ddp_mem_allocs_since_freeze(), 0);
    CHECK_OK(DDP_ALLOC(block, 10));
    CHECK_OK(ddp_large_alloc(5000, &large));
    assert_int_equal(ddp_mem_allocs_since_freeze(), 2);
    ddp_free(block);
    ddp_large_free(large, 5000);
    ddp_mem_thaw();
    CHECK_OK(DDP_ALLOC(block, 10));
    ddp_free(block);
    assert_int_equal(ddp_mem_allocs_since_freeze(), 2);
    ddp_mem_freeze();
    assert_int_equal(ddp_mem_allocs_since_freeze(), 0);
    ddp_mem_thaw();
}

static void peak_stays(void **state)
{
    const size_t bytes = (size_t)64 << 20;
    void *first;
    void *second;

    (void)state;
    CHECK_OK(ddp_large_alloc(bytes, &first));
    uint64_t peak = ddp_mem_peak_bytes();
    assert_true(peak >= bytes);
    ddp_large_free(first, bytes);
    assert_int_equal(ddp_mem_peak_bytes(), peak);
    /* What was freed does not count towards a new peak. */
    CHECK_OK(ddp_large_alloc(bytes / 2, &first));
    CHECK_OK(ddp_alloc_bytes(bytes / 4, 1, &second));
    assert_int_equal(ddp_mem_peak_bytes(), peak);
    ddp_free(second);
    ddp_large_free(first, bytes / 2);
}

static void large_buffers(void **state)
{
    static const size_t sizes[] = {0, 1, 4096, 5000, ((size_t)2 << 20) - 1, ((size_t)5 << 20) + 3};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *buffer;
        CHECK_OK(ddp_large_alloc(sizes[i], (void **)(void *)&buffer));
        assert_int_equal((uintptr_t)buffer % ((size_t)2 << 20), 0);
        for (size_t at = 0; at < sizes[i]; at++)
            if (buffer[at] != 0)
                fail_msg("byte %zu of %zu is not zero", at, sizes[i]);
        memset(buffer, 1, sizes[i]);
        ddp_large_free(buffer, sizes[i]);
    }
    ddp_large_free(NULL, 0);
}

static void strings_are_copied(void **state)
{
    char text[] = "abc";
    char *copy;

    (void)state;
    CHECK_OK(ddp_strdup(text, &copy));
    text[0] = 'x';
    assert_string_equal(copy, "abc");
    ddp_free(copy);
}

static void foreign_pointers_are_noticed(void **state)
{
    _Alignas(64) static char not_ours[256];
    int status;

    (void)state;
    pid_t child = fork();
    if (child == 0) {
        close(STDERR_FILENO);
        ddp_free(not_ours + 64);
        _exit(0);
    }
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
}

static void shapes(void **state)
{
    const ddp_shape shape = {4, {20, 1, 3, 3}};
    ddp_shape other = shape;
    char text[32];

    (void)state;
    assert_int_equal(ddp_shape_count(&shape), 180);
    assert_int_equal(ddp_shape_count(&(ddp_shape){0}), 1);
    assert_string_equal(ddp_shape_format(&shape, text, sizeof text), "20x1x3x3");
    assert_string_equal(ddp_shape_format(&shape, text, 5), "20x1");
    assert_string_equal(ddp_shape_format(&(ddp_shape){0}, text, sizeof text), "scalar");
    assert_true(ddp_shape_equal(&shape, &other));
    other.dims[5] = 9; /* behind ndim: without meaning */
    assert_true(ddp_shape_equal(&shape, &other));
    other.dims[3] = 4;
    assert_false(ddp_shape_equal(&shape, &other));
    other = (ddp_shape){3, {20, 1, 3}};
    assert_false(ddp_shape_equal(&shape, &other));
}

static void element_types(void **state)
{
    (void)state;
    assert_int_equal(ddp_dtype_bytes(DDP_F32), 4);
    assert_int_equal(ddp_dtype_bytes(DDP_F64), 8);
    assert_int_equal(ddp_dtype_bytes(DDP_U8), 1);
    assert_string_equal(ddp_dtype_name(DDP_I64), "i64");
    assert_string_equal(ddp_dtype_name((ddp_dtype)77), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_aligned_and_zeroed),
        cmocka_unit_test(impossible_sizes_fail),
        cmocka_unit_test(allocations_are_counted),
        cmocka_unit_test(peak_stays),
        cmocka_unit_test(large_buffers),
        cmocka_unit_test(strings_are_copied),
        cmocka_unit_test(foreign_pointers_are_noticed),
        cmocka_unit_test(shapes),
        cmocka_unit_test(element_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
