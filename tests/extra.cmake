# Tests that are scripts: lint.*, train.*, install.*. A script that cannot run ends with 77: skipped.
foreach(lint layers sizes format headers banned selftest)
  add_test(NAME lint.${lint}
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lint/${lint}.sh ${CMAKE_SOURCE_DIR})
  set_tests_properties(lint.${lint} PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77)
endforeach()
add_test(NAME lint.no_cuda COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/lint/no_cuda.sh
  $<TARGET_FILE:ddp_train> $<TARGET_FILE:ddp>)
set_tests_properties(lint.no_cuda PROPERTIES SKIP_RETURN_CODE 77)

# The bf16 operations once more as on processors that emulate them, or have nothing for them.
foreach(isa AVX512_CORE AVX2)
  add_test(NAME unit.bf16_${isa} COMMAND unit_bf16)
  set_tests_properties(unit.bf16_${isa} PROPERTIES TIMEOUT 300
    ENVIRONMENT "DNNL_MAX_CPU_ISA=${isa};ONEDNN_MAX_CPU_ISA=${isa}")
endforeach()

add_test(NAME unit.op_conv_AVX2 COMMAND unit_op_conv) # no Winograd
set_tests_properties(unit.op_conv_AVX2 PROPERTIES TIMEOUT 300
  ENVIRONMENT "DNNL_MAX_CPU_ISA=AVX2;ONEDNN_MAX_CPU_ISA=AVX2")

# train_test(NAME SECONDS SCRIPT ARGUMENT...): all but one start ranks by mpirun.
function(train_test name seconds script)
  if(NOT DDP_MPI AND NOT script STREQUAL "loopback")
    return()
  endif()
  add_test(NAME train.${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/train/${script}.sh ${ARGN})
  set_tests_properties(train.${name} PROPERTIES TIMEOUT ${seconds} RUN_SERIAL TRUE
    SKIP_RETURN_CODE 77
    ENVIRONMENT "DDP_TRAIN=$<TARGET_FILE:ddp_train>;DDP_BENCH=$<TARGET_FILE:ddp_bench>")
endfunction()
train_test(loopback 300 loopback)
train_test(mpi_lenet 300 worlds lenet)
train_test(mpi_mlp 300 worlds mlp)
train_test(mpi_variants 300 variants)
train_test(mpi_rank_weights 300 rank_weights)
train_test(mpi_last_batch 300 last_batch)
train_test(mpi_eval_only 300 eval_only)
train_test(mpi_augment 300 augment)
train_test(mpi_optimizers 300 optimizers)
train_test(mpi_exact 600 exact)
train_test(compress 300 compress)
train_test(mpi_auto_buckets 600 auto_buckets)
train_test(mpi_cifar 300 cifar)
if(DDP_PACK AND DDP_MPI)
  add_executable(make_images ${CMAKE_CURRENT_SOURCE_DIR}/train/make_images.c)
  target_link_libraries(make_images PRIVATE ddp_image_files ddp_warnings)
  train_test(mpi_shards 300 shards)
  set_property(TEST train.mpi_shards APPEND PROPERTY ENVIRONMENT
    "DDP_MAKE_IMAGES=$<TARGET_FILE:make_images>")
endif()
train_test(mpi_weights 300 weights)
train_test(torch_weights 300 torch_weights)
train_test(mpi_resume 300 resume)
train_test(mpi_preempt 300 preempt)
train_test(nonfinite 300 nonfinite)
train_test(kill_storm 300 ../long/kill_storm 6)
train_test(write_faults 300 ../long/write_faults 19)
train_test(config 300 config)
train_test(bad_input 600 bad_input)
train_test(failures 300 failures)
train_test(death 300 ../long/death 1 30 "2 4")
train_test(inject 300 inject)
train_test(stragglers 300 stragglers)
train_test(tensorboard 300 tensorboard)
train_test(restarts 300 restarts)
train_test(run_dir 300 run_dir)
if(DDP_MPI)
  add_executable(check_trace ${CMAKE_CURRENT_SOURCE_DIR}/train/check_trace.c)
  target_link_libraries(check_trace PRIVATE ddp_warnings PkgConfig::JANSSON m)
  train_test(trace 300 trace)
  set_property(TEST train.trace APPEND PROPERTY ENVIRONMENT
    "DDP_CHECK_TRACE=$<TARGET_FILE:check_trace>")
endif()
train_test(doctor 300 doctor)
train_test(launch_mpirun 300 launch_mpirun)
train_test(launch_files 300 launch_files)
train_test(bench_allreduce 300 bench_allreduce)
train_test(bench_predict 300 bench_predict)
train_test(bench_scaling 300 bench_scaling)
train_test(bench_report 300 bench_report)
train_test(bench_overlap 300 bench_overlap)
train_test(bench_stopped 300 bench_stopped)

# cluster_test(NAME SECONDS SCRIPT ARGUMENT...): over hosts made of network namespaces; a part of run.sh of its own.
function(cluster_test name seconds script)
  if(NOT DDP_MPI)
    return()
  endif()
  add_test(NAME cluster.${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cluster/${script}.sh ${ARGN})
  set_tests_properties(cluster.${name} PROPERTIES TIMEOUT ${seconds} RUN_SERIAL TRUE
    SKIP_RETURN_CODE 77 ENVIRONMENT "DDP_TRAIN=$<TARGET_FILE:ddp_train>")
endfunction()
cluster_test(hosts 300 hosts)
cluster_test(restarts 300 restarts)
cluster_test(doctor 300 doctor)
cluster_test(two_hosts 300 worlds 2)
cluster_test(four_hosts 400 worlds 4)
foreach(case link_cut_short link_cut_for_good host_killed rank_killed)
  cluster_test(${case} 400 failures ${case})
endforeach()
cluster_test(hier_bytes 300 bytes)
cluster_test(slurm_train 480 slurm_train)
cluster_test(slurm_failures 480 slurm_failures)
cluster_test(slurm_scaling 480 slurm_scaling)
cluster_test(slurm_death 480 ../long/death --launcher srun 1 30 "2 4")

# A program built by somebody else would need the same sanitizer.
if(DDP_MPI AND NOT DDP_SANITIZE)
  add_test(NAME install.outside_program COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/install/check.sh
    ${CMAKE_BINARY_DIR} ${CMAKE_COMMAND} ${CMAKE_C_COMPILER})
  set_tests_properties(install.outside_program PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77
    ENVIRONMENT "${DDP_MPI_ENV}")
endif()
