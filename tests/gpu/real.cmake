# The tests of the CUDA device once more, with NVIDIA's libraries and kernels by nvcc, for a machine that
# has a GPU: real.NAME. Not those that need the simulator's injected failures. Target real_tests.
add_custom_target(real_tests DEPENDS ddp_cuda ddp_train)

# ddp_real_program(NAME SOURCE)
function(ddp_real_program name source)
  add_executable(real_${name} ${source} $<TARGET_OBJECTS:ddp_cuda_code> $<TARGET_OBJECTS:ddp_cuda_host>)
  target_include_directories(real_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_include_directories(real_${name} SYSTEM PRIVATE ${DDP_CUDA_INCLUDE_DIRS})
  target_compile_definitions(real_${name} PRIVATE DDP_TEST_CUDA
    DDP_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
  target_link_libraries(real_${name} PRIVATE ddp_objects ddp_warnings ${DDP_CUDA_LIBRARIES}
    PkgConfig::CMOCKA)
  set_target_properties(real_${name} PROPERTIES LINKER_LANGUAGE CUDA CUDA_RUNTIME_LIBRARY None
    BUILD_RPATH "${DDP_CUDA_FOLDERS}")
  add_dependencies(real_tests real_${name})
endfunction()

foreach(source ${GPU_TESTS} ${CMAKE_SOURCE_DIR}/tests/unit/test_model_golden.c
    ${CMAKE_SOURCE_DIR}/tests/unit/test_resnet.c)
  get_filename_component(name ${source} NAME_WE)
  string(REGEX REPLACE "^test_" "" name ${name})
  if(name STREQUAL "library_failures")
    continue()
  endif()
  ddp_real_program(${name} ${source})
  add_test(NAME real.${name} COMMAND real_${name})
  set_tests_properties(real.${name} PROPERTIES TIMEOUT 300 RUN_SERIAL TRUE)
endforeach()
if(DDP_MPI)
  ddp_real_program(mpi_nccl ${CMAKE_CURRENT_SOURCE_DIR}/mpi_nccl.c)
endif()
