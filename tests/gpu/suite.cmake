# Scripts that run ddp_train on simulated GPUs.

# gpu_script(NAME SCRIPT ARGUMENT...): tests/gpu/SCRIPT.sh as gpu.NAME; with several ranks.
function(gpu_script name script)
  if(NOT DDP_MPI)
    return()
  endif()
  add_test(NAME gpu.${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/${script}.sh ${ARGN})
  set_tests_properties(gpu.${name} PROPERTIES TIMEOUT 300 ENVIRONMENT
    "DDP_TRAIN=$<TARGET_FILE:ddp_train>;DDP_BENCH=$<TARGET_FILE:ddp_bench>;LD_LIBRARY_PATH=${DDP_SIMCUDA_PATH};DDP_SANITIZED=${DDP_SANITIZE}")
endfunction()

# Mistakes made on purpose must be noticed: missing waits by the thread sanitizer, the others without it.
if(DDP_SANITIZE STREQUAL "thread")
  set(mistakes none wait sync)
else()
  set(mistakes none sync barrier swap skip)
endif()
foreach(mistake ${mistakes})
  gpu_script(seeded_${mistake} seeded ${mistake})
endforeach()

# The program's own training tests with everything on GPUs, and what only GPUs have.
if(DDP_MPI AND NOT DDP_SANITIZE)
  gpu_script(worlds_mlp worlds mlp)
  gpu_script(worlds_lenet worlds lenet)
  gpu_script(failures failures)
  gpu_script(bench bench)
  foreach(test variants last_batch optimizers rank_weights eval_only)
    gpu_script(train_${test} ../train/${test})
    set_property(TEST gpu.train_${test} APPEND PROPERTY
      ENVIRONMENT "DDP_TEST_ARGUMENTS=--device cuda")
  endforeach()
endif()
