# libcublasLt and libcudnn of the simulator, on its libcudart, and their test.
simcuda_library(cublasLt 13 cublaslt.map cublaslt.cc cublaslt_desc.cc num.cc)
simcuda_library(cudnn 9 cudnn.map cudnn_desc.cc cudnn_conv.cc cudnn_conv_run.cc num.cc)
set_source_files_properties(num.cc cudnn_conv_run.cc PROPERTIES
  COMPILE_OPTIONS "-ffp-contract=fast;-fno-tree-loop-distribute-patterns")
foreach(library cublasLt cudnn)
  target_link_libraries(sim_${library} PRIVATE sim_cudart)
  target_compile_options(sim_${library} PRIVATE -fvisibility-inlines-hidden)
endforeach()

foreach(test products convolutions)
  simcuda_test(${test} test_${test}.cc sim_cudart sim_cublasLt sim_cudnn)
  target_sources(sim_test_${test} PRIVATE num.cc)
  add_test(NAME sim.${test} COMMAND sim_test_${test})
  set_tests_properties(sim.${test} PROPERTIES TIMEOUT 60)
endforeach()
