/* unit.doctor_net - the doctor's rules about networks, NCCL, what ranks have in common, and
 * measurements. */
#include "doctor_case.h"

/* ---- networks ---- */

static void finds_hosts_without_a_common_subnet(void **state)
{
    (void)state;
    made *m = make();
    for (int r = 2; r < WORLD; r++)
        m->ranks[r].net.list[0].bytes[2] = 3;
    check_finds(m, DDPI_FINDING_SLOW, "host0 and host1 have no subnet in common",
                "btl_tcp_if_include");
    m = make();
    for (int r = 2; r < WORLD; r++)
        m->ranks[r].net.list[0].up = false;
    check_finds(m, DDPI_FINDING_SLOW, "host0 and host1 have no subnet in common",
                "btl_tcp_if_include");
}

static void notices_a_missing_side_channel(void **state)
{
    (void)state;
    made *m = make();
    m->ranks[2].net.side_missing = true;
    check_finds(m, DDPI_FINDING_NOTE, "host1 has no connection to host0 beside MPI", "TCP");
}

static void add_iface(made *m, int rank, ddpi_doctor_iface iface)
{
    m->ranks[rank].net.list[m->ranks[rank].net.count++] = iface;
}

static ddpi_doctor_iface docker(int last)
{
    ddpi_doctor_iface iface = {
        .name = "docker0", .family = 4, .prefix = 16, .up = true, .bridge = true};

    snprintf(iface.address, sizeof iface.address, "172.17.0.%d", last);
    const uint8_t bytes[4] = {172, 17, 0, (uint8_t)last};
    memcpy(iface.bytes, bytes, sizeof bytes);
    return iface;
}

static void takes_the_longer_prefix(void **state)
{
    (void)state;
    made *m = make();
    for (int r = 2; r < WORLD; r++) {
        m->ranks[r].net.list[0].bytes[2] = 3;
        m->ranks[r].net.list[0].prefix = 16; /* host1 takes host0 for near, but not the reverse */
    }
    check_finds(m, DDPI_FINDING_SLOW, "no subnet in common", "btl_tcp_if_include");
    m = make();
    for (int r = 2; r < WORLD; r++)
        m->ranks[r].net.list[0].prefix = 16;
    check_silent(m);
}

static void finds_bridges_that_look_like_networks(void **state)
{
    (void)state;
    made *m = make();
    add_iface(m, 2, docker(1));
    check_finds(m, DDPI_FINDING_NOTE, "docker0 of host1 (172.17.0.1) leads to no other host",
                "btl_tcp_if_include 10.1.2.0/24");
    m = make();
    add_iface(m, 2, docker(1));
    for (int r = 0; r < WORLD; r++)
        add_env(m, r, "OMPI_MCA_btl_tcp_if_include=eth0");
    check_silent(m);
    m = make();
    ddpi_doctor_iface twin = docker(1);
    add_iface(m, 0, twin);
    add_iface(m, 2, twin);
    check_finds(m, DDPI_FINDING_NOTE, "have the same address 172.17.0.1",
                "btl_tcp_if_include 10.1.2.0/24");
    m = make();
    ddpi_doctor_iface down = docker(1);
    down.up = false;
    add_iface(m, 0, down);
    add_iface(m, 2, down);
    check_silent(m);
}

static void finds_two_ways_into_one_subnet(void **state)
{
    (void)state;
    made *m = make();
    ddpi_doctor_iface second = iface_of("eth1", 7);
    add_iface(m, 0, second);
    check_finds(m, DDPI_FINDING_NOTE, "eth0 and eth1 of host0 are both in 10.1.2.0/24",
                "btl_tcp_if_include");
    m = make();
    second.bytes[2] = 77;
    add_iface(m, 0, second);
    check_silent(m);
}

static void finds_interfaces_that_are_not_there(void **state)
{
    (void)state;
    made *m = make();
    for (int r = 0; r < WORLD; r++)
        add_env(m, r, "OMPI_MCA_btl_tcp_if_include=10.1.2.0/24,eth0");
    check_silent(m);
    m = make();
    for (int r = 0; r < WORLD; r++)
        add_env(m, r, "OMPI_MCA_btl_tcp_if_include=eth0");
    for (int r = 2; r < WORLD; r++)
        snprintf(m->ranks[r].net.list[0].name, DDPI_DOCTOR_NAME_BYTES, "eno1");
    m->c.links.link_count = 0;
    check_finds(m, DDPI_FINDING_FAILS, "names eth0, which host1 does not have",
                "btl_tcp_if_include 10.1.2.0/24");
}

static void finds_names_that_take_long(void **state)
{
    (void)state;
    made *m = make();
    m->ranks[2].net.localhost_s = 2;
    check_finds(m, DDPI_FINDING_SLOW, "host1 took 2.0 s to look up localhost,", "/etc/hosts");
    m = make();
    m->ranks[0].net.own_name_ok = false;
    check_finds(m, DDPI_FINDING_NOTE, "host0 does not resolve its own name", "HWLOC_COMPONENTS");
    m = make();
    m->ranks[0].launch.start_s = 11;
    check_finds(m, DDPI_FINDING_SLOW, "it took 11 s until all ranks had met", "HWLOC_COMPONENTS");
}

/* ---- NCCL ---- */

static made *make_nccl(const char *line)
{
    made *m = make();

    m->c.needs.cuda = m->c.needs.nccl = true;
    for (int r = 0; r < WORLD; r++) {
        m->ranks[r].gpu.visible = 2;
        if (line != NULL)
            add_env(m, r, line);
    }
    return m;
}

static void knows_which_interfaces_nccl_takes(void **state)
{
    (void)state;
    check_silent(make_nccl(NULL));
    check_silent(make_nccl("NCCL_SOCKET_IFNAME=eth0"));
    check_silent(make_nccl("NCCL_SOCKET_IFNAME==eth0"));
    check_silent(make_nccl("NCCL_SOCKET_IFNAME=^docker,lo"));
    check_silent(make_nccl("NCCL_SOCKET_IFNAME=^lo"));
    made *m = make_nccl("NCCL_SOCKET_IFNAME=^docker0");
    ddpi_rules_nccl(&m->c, &m->found);
    assert_int_equal(m->found.count, 2); /* one for each host */
    assert_non_null(strstr(m->found.list[0].because, "^docker0 of host0 excludes some interfaces"));
    assert_non_null(strstr(m->found.list[0].remedy, "^docker,lo"));
    assert_int_equal(m->found.list[0].kind, DDPI_FINDING_FAILS);
    ddp_free(m);
    m = make_nccl("NCCL_SOCKET_IFNAME=lo");
    ddpi_rules_nccl(&m->c, &m->found);
    assert_int_equal(ddpi_findings_count(&m->found, DDPI_FINDING_FAILS), 2);
    assert_non_null(strstr(m->found.list[0].because, "is lo on host0"));
    ddp_free(m);
}

static void knows_that_names_are_prefixes_for_nccl(void **state)
{
    (void)state;
    made *m = make_nccl("NCCL_SOCKET_IFNAME=eth0");
    ddpi_doctor_iface vlan = iface_of("eth0.100", 0);
    vlan.bytes[2] = 9;
    add_iface(m, 0, vlan);
    check_finds(m, DDPI_FINDING_NOTE, "means every interface of host0 that begins so, eth0.100",
                "NCCL_SOCKET_IFNAME==eth0");
    m = make_nccl("NCCL_SOCKET_IFNAME=eth0,eno9");
    ddpi_rules_nccl(&m->c, &m->found);
    assert_int_equal(m->found.count, 2);
    assert_non_null(strstr(m->found.list[0].because, "names eno9, which host0"));
    ddp_free(m);
    m = make_nccl("NCCL_SOCKET_IFNAME=ib");
    ddpi_rules_nccl(&m->c, &m->found);
    assert_int_equal(ddpi_findings_count(&m->found, DDPI_FINDING_FAILS), 2);
    assert_non_null(strstr(m->found.list[1].because, "names ib, which host1 does not have"));
    ddp_free(m);
}

static void put_all_on_one_host(made *m)
{
    for (int r = 0; r < WORLD; r++)
        snprintf(m->ranks[r].host, sizeof m->ranks[r].host, "host0");
}

static void finds_a_host_without_any_interface(void **state)
{
    (void)state;
    made *m = make_nccl(NULL);
    put_all_on_one_host(m);
    for (int r = 0; r < WORLD; r++)
        m->ranks[r].net.count = 0;
    check_finds(m, DDPI_FINDING_FAILS, "host0 has no interface but lo", "NCCL_SOCKET_IFNAME=lo");
    m = make_nccl("NCCL_SOCKET_IFNAME=lo");
    put_all_on_one_host(m);
    for (int r = 0; r < WORLD; r++)
        m->ranks[r].net.count = 0;
    check_silent(m);
}

static void compares_gpus(void **state)
{
    (void)state;
    made *m = make_nccl(NULL);
    m->ranks[2].gpu.visible = m->ranks[3].gpu.visible = 4;
    check_finds(m, DDPI_FINDING_NOTE, "host0 shows its ranks 2 GPUs and host1 shows 4", "ranks");
    m = make_nccl(NULL);
    m->ranks[2].gpu.visible = m->ranks[3].gpu.visible = 1;
    check_finds(m, DDPI_FINDING_NOTE, "each rank of host1 sees one GPU only", "--gpu-bind=none");
    m = make_nccl(NULL);
    m->c.needs.cuda = m->c.needs.nccl = false;
    ddpi_rules_nccl(&m->c, &m->found);
    assert_int_equal(ddpi_findings_count(&m->found, DDPI_FINDING_SLOW), 2);
    assert_non_null(strstr(m->found.list[0].because, "host0 has 2 GPUs, but the ranks compute on"));
    ddp_free(m);
}

/* ---- what should be equal ---- */

static void compares_variables(void **state)
{
    (void)state;
    made *m = make();
    add_env(m, 2, "OMPI_MCA_btl=tcp,self");
    add_env(m, 3, "OMPI_MCA_btl=tcp,self");
    check_finds(m, DDPI_FINDING_NOTE,
                "OMPI_MCA_btl differs: rank 0 on host0 has none, rank 2 on host1 has \"tcp,self\"",
                "mpirun -x OMPI_MCA_btl");
    m = make();
    snprintf(m->ranks[3].env, sizeof m->ranks[3].env, "OMP_NUM_THREADS=42\n");
    check_finds(m, DDPI_FINDING_NOTE, "has \"4\", rank 3 on host1 has \"42\"", "OMP_NUM_THREADS");
    m = make();
    add_env(m, 0, "CUDA_VISIBLE_DEVICES=0");
    add_env(m, 1, "CUDA_VISIBLE_DEVICES=1");
    check_silent(m);
    m = make();
    add_env(m, 0, "NCCL_ALGO=Ring");
    check_finds(m, DDPI_FINDING_NOTE, "NCCL_ALGO differs", "-x NCCL_");
    m = make_nccl(NULL);
    add_env(m, 0, "OMP_PLACES=cores");
    check_finds(m, DDPI_FINDING_NOTE, "OMP_PLACES differs", "-x OMP_PLACES");
    m = make_nccl(NULL);
    add_env(m, 0, "NCCL_ALGO=Ring");
    check_finds(m, DDPI_FINDING_FAILS, "NCCL_ALGO differs: rank 0 on host0 has \"Ring\"",
                "-x NCCL_");
}

static void compares_versions(void **state)
{
    (void)state;
    made *m = make();
    snprintf(m->ranks[3].mpi, sizeof m->ranks[3].mpi, "Open MPI v5.0.0");
    check_finds(m, DDPI_FINDING_NOTE, "ranks differ in MPI library", "LD_LIBRARY_PATH");
    m = make_nccl(NULL);
    snprintf(m->ranks[1].cuda, sizeof m->ranks[1].cuda, "NCCL 2.20");
    check_finds(m, DDPI_FINDING_FAILS, "rank 1 on host0 has \"NCCL 2.20\"", "same versions");
    m = make();
    snprintf(m->ranks[2].cpu.model, sizeof m->ranks[2].cpu.model, "Old");
    check_finds(m, DDPI_FINDING_SLOW, "ranks differ in processor", "--rank-weights");
    m = make();
    m->c.needs.exact = true;
    snprintf(m->ranks[2].device, sizeof m->ranks[2].device, "isa 0x7");
    check_finds(m, DDPI_FINDING_FAILS, "ranks differ in device", "--rank-weights");
}

/* ---- measurements ---- */

static void finds_links_below_their_speed(void **state)
{
    (void)state;
    made *m = make();
    m->c.links.links[0].rate = 4e7; /* of 1.25e8 */
    check_finds(m, DDPI_FINDING_SLOW,
                "from host0 to host1 pass at 0.04 GB/s, where eth0 could carry "
                "0.125",
                "traffic");
    m = make();
    m->c.links.link_count = 2;
    m->c.links.links[1] = (ddpi_doctor_link){.from = 1, .to = 3, .rate = 4e7, .bytes = 1 << 20};
    check_finds(m, DDPI_FINDING_SLOW, "from host0 to host1 pass at 0.04 GB/s, between other hosts",
                "check that link");
    m = make();
    m->c.links.links[0].to = 1;
    m->c.links.links[0].inside = true;
    check_finds(m, DDPI_FINDING_SLOW, "messages between ranks of host0 go through eth0", "vader");
}

static void finds_faster_interfaces_that_are_not_used(void **state)
{
    (void)state;
    made *m = make();
    ddpi_doctor_iface fast = iface_of("ib0", 0);
    fast.bytes[2] = 9;
    fast.speed_mbit = 100000;
    add_iface(m, 0, fast);
    check_finds(m, DDPI_FINDING_SLOW, "leave by eth0 (1000 Mbit/s), though it has ib0 (100000)",
                "btl_tcp_if_include");
}

static void finds_clocks_apart(void **state)
{
    (void)state;
    made *m = make();
    m->c.links.clock_count = 1;
    m->c.links.clocks[0] = (ddpi_doctor_clock){.rank = 2, .real_s = -3};
    check_finds(m, DDPI_FINDING_NOTE, "the clock of host1 is 3.0 s behind that of host0", "chrony");
    m = make();
    m->c.links.clock_count = 1;
    m->c.links.clocks[0] = (ddpi_doctor_clock){.rank = 2, .real_s = 0.9, .monotonic_s = 5000};
    check_silent(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_hosts_without_a_common_subnet),
        cmocka_unit_test(notices_a_missing_side_channel),
        cmocka_unit_test(takes_the_longer_prefix),
        cmocka_unit_test(finds_bridges_that_look_like_networks),
        cmocka_unit_test(finds_two_ways_into_one_subnet),
        cmocka_unit_test(finds_interfaces_that_are_not_there),
        cmocka_unit_test(finds_names_that_take_long),
        cmocka_unit_test(knows_which_interfaces_nccl_takes),
        cmocka_unit_test(knows_that_names_are_prefixes_for_nccl),
        cmocka_unit_test(finds_a_host_without_any_interface),
        cmocka_unit_test(compares_gpus),
        cmocka_unit_test(compares_variables),
        cmocka_unit_test(compares_versions),
        cmocka_unit_test(finds_links_below_their_speed),
        cmocka_unit_test(finds_faster_interfaces_that_are_not_used),
        cmocka_unit_test(finds_clocks_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
