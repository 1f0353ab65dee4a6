/* test_place.c - which GPU a rank takes, who shares one, what then carries gradients, and which
 * cores a rank is bound to. */
#include "harness.h"

#include <hwloc.h>
#include <hwloc/glibc-sched.h>

#include "app/place.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

enum { WORLD = 4 };

static ddpi_rank_info rank_on(const char *host, const char *uuid, const char *pci)
{
    ddpi_rank_info info = {0};

    snprintf(info.host, sizeof info.host, "%s", host);
    snprintf(info.network, sizeof info.network, "eth0");
    snprintf(info.gpu.uuid, sizeof info.gpu.uuid, "%s", uuid);
    snprintf(info.gpu.pci, sizeof info.gpu.pci, "%s", pci);
    if (pci[0] != '\0')
        snprintf(info.gpu.name, sizeof info.gpu.name, "Some GPU");
    CPU_ZERO(&info.cores);
    CPU_SET(0, &info.cores);
    return info;
}

/* ---- places ---- */

static void a_rank_takes_the_gpu_of_its_number(void **state)
{
    (void)state;
    assert_int_equal(ddpi_place_index(3, 4), 3);
    assert_int_equal(ddpi_place_index(3, 2), 1);
    assert_int_equal(ddpi_place_index(3, 1), 0); /* --gpus-per-task=1 */
}

static void ranks_with_one_gpu_are_named(void **state)
{
    (void)state;
    const ddpi_rank_info ranks[WORLD] = {
        rank_on("a", "11", "0000:01:00.0"), rank_on("a", "22", "0000:02:00.0"),
        rank_on("b", "33", "0000:01:00.0"), rank_on("a", "22", "0000:02:00.0")};
    int first, second;
    assert_true(ddpi_place_find_shared(ranks, WORLD, &first, &second));
    assert_int_equal(first, 1);
    assert_int_equal(second, 3);
    CHECK_FAILS(ddpi_place_check(ranks, WORLD, false), DDP_ERR_USAGE,
                "rank 1 on a and rank 3 on a have the same GPU (0000:02:00.0, 22)");
    CHECK_FAILS(ddpi_place_check(ranks, WORLD, false), DDP_ERR_USAGE, "--share-device");
    CHECK_OK(ddpi_place_check(ranks, WORLD, true));
    CHECK_OK(ddpi_place_check(ranks, 3, false)); /* equal places on the bus of two hosts */
}

/* One visible device each: all have index 0, and what counts is the UUID. */
static void one_visible_gpu_each_is_not_shared(void **state)
{
    (void)state;
    const ddpi_rank_info ranks[2] = {rank_on("a", "11", "0000:01:00.0"),
                                     rank_on("a", "22", "0000:02:00.0")};
    CHECK_OK(ddpi_place_check(ranks, 2, false));
}

static void without_uuids_host_and_bus_decide(void **state)
{
    (void)state;
    const ddpi_rank_info ranks[3] = {rank_on("a", "", "0000:01:00.0"),
                                     rank_on("b", "", "0000:01:00.0"),
                                     rank_on("b", "", "0000:01:00.0")};
    const ddpi_rank_info cpus[2] = {rank_on("a", "", ""), rank_on("a", "", "")};
    int first, second;
    CHECK_OK(ddpi_place_check(ranks, 2, false));
    CHECK_FAILS(ddpi_place_check(ranks, 3, false), DDP_ERR_USAGE, "rank 1 on b and rank 2 on b");
    assert_false(ddpi_place_find_shared(cpus, 2, &first, &second));
}

/* ---- the lane ---- */

static void the_lane_follows_options_and_places(void **state)
{
    (void)state;
    const struct {
        ddpi_lane_wish wish; /* cuda, comm, shared, nccl, buffers */
        ddpi_lane_choice want;
    } cases[] = {
        {{false, DDP_COMM_AUTO, false, false, .aware = false}, DDPI_LANE_NONE},
        {{false, DDP_COMM_MPI, false, false, .aware = false}, DDPI_LANE_NONE},
        {{false, DDP_COMM_LOOPBACK, false, false, .aware = false}, DDPI_LANE_NONE},
        {{true, DDP_COMM_AUTO, false, true, .aware = false}, DDPI_LANE_NCCL},
        {{true, DDP_COMM_AUTO, true, true, .aware = false}, DDPI_LANE_STAGED},
        {{true, DDP_COMM_AUTO, false, false, .aware = false}, DDPI_LANE_STAGED},
        {{true, DDP_COMM_MPI, false, true, .aware = false}, DDPI_LANE_STAGED},
        {{true, DDP_COMM_LOOPBACK, false, true, .aware = false}, DDPI_LANE_STAGED},
        {{true, DDP_COMM_NCCL, false, true, .aware = false}, DDPI_LANE_NCCL},
        {{true, DDP_COMM_MPI, false, true, .aware = true}, DDPI_LANE_DIRECT},
        {{true, DDP_COMM_MPI, false, true, .aware = true, .exact = true}, DDPI_LANE_STAGED},
        {{true, DDP_COMM_MPI, false, true, .exact = true, .parts = 1}, DDPI_LANE_STAGED},
        {{true, DDP_COMM_AUTO, false, true, .exact = true, .parts = 2}, DDPI_LANE_NCCL},
        {{true, DDP_COMM_MPI, false, true, DDP_DEVICE_BUFFERS_OFF, .aware = true},
         DDPI_LANE_STAGED},
        {{true, DDP_COMM_AUTO, true, true, DDP_DEVICE_BUFFERS_ON, .aware = true}, DDPI_LANE_DIRECT},
        {{true, DDP_COMM_AUTO, false, true, DDP_DEVICE_BUFFERS_ON, .aware = true},
         DDPI_LANE_DIRECT},
        {{true, DDP_COMM_AUTO, false, true, .aware = true}, DDPI_LANE_NCCL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ddpi_lane_choice got;
        CHECK_OK(ddpi_place_lane(&cases[i].wish, &got));
        if (got != cases[i].want)
            fail_msg("case %zu: lane %d, expected %d", i, (int)got, (int)cases[i].want);
    }
}

static void what_cannot_be_had_is_refused_with_the_reason(void **state)
{
    (void)state;
    ddpi_lane_choice lane;
    CHECK_FAILS(ddpi_place_lane(
                    &(ddpi_lane_wish){false, DDP_COMM_NCCL, false, false, .aware = false}, &lane),
                DDP_ERR_USAGE, "the ranks compute on CPUs");
    CHECK_FAILS(
        ddpi_place_lane(&(ddpi_lane_wish){true, DDP_COMM_NCCL, true, true, .aware = false}, &lane),
        DDP_ERR_USAGE, "--share-device");
    CHECK_FAILS(ddpi_place_lane(
                    &(ddpi_lane_wish){true, DDP_COMM_NCCL, false, false, .aware = false}, &lane),
                DDP_ERR_UNSUPPORTED, "built without NCCL");
    const ddpi_lane_wish unaware = {true, DDP_COMM_MPI, .buffers = DDP_DEVICE_BUFFERS_ON};
    ddpi_lane_wish exact = unaware;
    exact.aware = exact.exact = true;
    CHECK_FAILS(ddpi_place_lane(&unaware, &lane), DDP_ERR_UNSUPPORTED, "does not take GPU memory");
    CHECK_FAILS(ddpi_place_lane(&exact, &lane), DDP_ERR_UNSUPPORTED, "keep an order");
    const ddpi_lane_wish parts = {true, DDP_COMM_MPI, .nccl = true, .exact = true, .parts = 2};
    CHECK_FAILS(ddpi_place_lane(&parts, &lane), DDP_ERR_UNSUPPORTED, "expected --comm nccl");
}

static void variables_of_nccl_are_sorted_and_ours(void **state)
{
    (void)state;
    char *const envp[] = {(char[]){"NCCL_PROTO=Simple"},    (char[]){"PATH=/bin"},
                          (char[]){"NCCL_DEBUG=INFO"},      (char[]){"NCCL_ALGO=Ring"},
                          (char[]){"NCCL_DEBUG_FILE=x.%h"}, (char[]){"NCCL_HOSTID=7"},
                          (char[]){"XNCCL_ALGO=Tree"},      NULL};
    char *text;
    CHECK_OK(ddpi_nccl_variables(envp, &text));
    assert_string_equal(text, "NCCL_ALGO=Ring\nNCCL_PROTO=Simple\n");
    ddp_free(text);
    CHECK_OK(ddpi_nccl_variables(NULL, &text));
    assert_string_equal(text, "");
    ddp_free(text);
}

static void the_table_has_a_row_for_each_rank(void **state)
{
    (void)state;
    ddpi_rank_info ranks[2] = {rank_on("hostA", "1234567890abcdef", "0000:01:00.0"),
                               rank_on("hostB", "", "")};
    char *text, *second;
    CPU_SET(1, &ranks[0].cores);
    CHECK_OK(ddpi_place_table(ranks, 2, &text));
    second = strstr(text, "hostB");
    assert_non_null(second);
    assert_true(strstr(text, "hostA") < second);
    assert_true(strstr(text, "Some GPU 12345678 ") < second);
    assert_null(strstr(text, "123456789"));
    assert_non_null(strstr(text, " 0-1 "));
    assert_non_null(strstr(second, " 1  - "));
    assert_non_null(strstr(second, " eth0"));
    ddp_free(text);
}

/* ---- cores ---- */

static void cores_are_narrowed_but_never_to_none(void **state)
{
    (void)state;
    cpu_set_t cores, near_cores;
    CPU_ZERO(&cores);
    CPU_ZERO(&near_cores);
    CPU_SET(1, &cores);
    CPU_SET(2, &cores);
    CPU_SET(2, &near_cores);
    CPU_SET(3, &near_cores);
    assert_true(ddpi_cores_narrow(&cores, &near_cores));
    assert_int_equal(CPU_COUNT(&cores), 1);
    assert_true(CPU_ISSET(2, &cores));
    CPU_CLR(2, &near_cores);
    assert_false(ddpi_cores_narrow(&cores, &near_cores));
    assert_true(CPU_ISSET(2, &cores));
}

/* Whatever PCI device this machine has stands for a GPU. */
static void a_pci_device_has_cores_near_it(void **state)
{
    (void)state;
    hwloc_topology_t topology;
    cpu_set_t cores;
    char pci[32] = "";
    assert_int_equal(hwloc_topology_init(&topology), 0);
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL);
    assert_int_equal(hwloc_topology_load(topology), 0);
    hwloc_obj_t device = hwloc_get_next_pcidev(topology, NULL);
    if (device != NULL)
        snprintf(pci, sizeof pci, "%04x:%02x:%02x.%01x", device->attr->pcidev.domain,
                 device->attr->pcidev.bus, device->attr->pcidev.dev, device->attr->pcidev.func);
    hwloc_topology_destroy(topology);
    assert_false(ddpi_near_cores("ffff:ff:1f.7", &cores));
    assert_false(ddpi_near_cores("nonsense", &cores));
    assert_false(ddpi_near_cores("", &cores));
    if (device == NULL)
        skip();
    assert_true(ddpi_near_cores(pci, &cores));
    assert_true(CPU_COUNT(&cores) > 0);
}

static void *wait_for_stop(void *arg)
{
    const int *stop = arg;

    while (!__atomic_load_n(stop, __ATOMIC_ACQUIRE))
        ddp_sleep_ns(1000000);
    return NULL;
}

static void binding_reaches_threads_that_run_already(void **state)
{
    (void)state;
    cpu_set_t before, one, seen;
    ddp_thread thread = {0};
    int stop = 0;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    if (CPU_COUNT(&before) < 2)
        skip();
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before))
            CPU_SET(i, &one);
    CHECK_OK(ddp_thread_start(&thread, "waits", wait_for_stop, &stop));
    CHECK_OK(ddpi_bind_threads(&one, true));
    assert_int_equal(pthread_getaffinity_np(thread.handle, sizeof seen, &seen), 0);
    assert_true(CPU_EQUAL(&seen, &before)); /* another rank's, for all we know */
    CHECK_OK(ddpi_bind_threads(&one, false));
    assert_int_equal(pthread_getaffinity_np(thread.handle, sizeof seen, &seen), 0);
    assert_true(CPU_EQUAL(&seen, &one));
    assert_int_equal(sched_getaffinity(0, sizeof seen, &seen), 0);
    assert_true(CPU_EQUAL(&seen, &one));
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    ddp_thread_join(&thread);
    CHECK_OK(ddpi_bind_threads(&before, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_takes_the_gpu_of_its_number),
        cmocka_unit_test(ranks_with_one_gpu_are_named),
        cmocka_unit_test(one_visible_gpu_each_is_not_shared),
        cmocka_unit_test(without_uuids_host_and_bus_decide),
        cmocka_unit_test(the_lane_follows_options_and_places),
        cmocka_unit_test(what_cannot_be_had_is_refused_with_the_reason),
        cmocka_unit_test(variables_of_nccl_are_sorted_and_ours),
        cmocka_unit_test(the_table_has_a_row_for_each_rank),
        cmocka_unit_test(cores_are_narrowed_but_never_to_none),
        cmocka_unit_test(a_pci_device_has_cores_near_it),
        cmocka_unit_test(binding_reaches_threads_that_run_already),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
