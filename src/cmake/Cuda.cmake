# The CUDA device and the NCCL communicator build into one module, libddp_cuda, which the program loads
# when it is asked for. -DDDP_CUDA=auto|on|off.
#
# Toolkit, cuDNN and NCCL are looked for where they usually are, in NVIDIA's Python wheels, and where
# -DCUDA_ROOT, -DCUDNN_ROOT and -DNCCL_ROOT say. With the headers alone (no nvcc, no libraries) the
# tests still build the module for their simulator of CUDA.
#
# Sets DDP_CUDA_HEADERS (found), DDP_CUDA_INCLUDE_DIRS, DDP_CUDA_LIBRARIES, DDP_CUDA_BUILD (the real
# module is built); defines ddp_add_cuda_module(), which sets DDP_CUDA_FOLDERS (of the libraries).
set_property(CACHE DDP_CUDA PROPERTY STRINGS auto on off)
set(DDP_CUDA_ARCHS "" CACHE STRING "Architectures of the kernels, as CMAKE_CUDA_ARCHITECTURES has them")
set(DDP_CUDA_WHEELS "" CACHE PATH "A site-packages folder with NVIDIA's wheels")
if(NOT DDP_CUDA MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "DDP_CUDA is \"${DDP_CUDA}\"; expected auto, on or off")
endif()

# Folders that may hold include/ and lib/ of any of the parts; those that are named go first.
function(ddp_cuda_roots out)
  set(patterns "")
  foreach(site ${DDP_CUDA_WHEELS})
    list(APPEND patterns ${site}/nvidia/*)
  endforeach()
  file(GLOB named LIST_DIRECTORIES true ${patterns})
  set(roots ${CUDA_ROOT} ${named} $ENV{CUDA_HOME} $ENV{CUDA_PATH})
  if(DDP_NVCC)
    get_filename_component(nvcc ${DDP_NVCC} REALPATH)
    get_filename_component(bin ${nvcc} DIRECTORY)
    get_filename_component(toolkit ${bin} DIRECTORY)
    list(APPEND roots ${toolkit})
  endif()
  set(patterns "")
  foreach(prefix $ENV{VIRTUAL_ENV} $ENV{CONDA_PREFIX} $ENV{HOME}/.local /usr/local /usr)
    list(APPEND patterns ${prefix}/lib/python3*/site-packages/nvidia/*
      ${prefix}/lib/python3*/dist-packages/nvidia/*)
  endforeach()
  file(GLOB wheels LIST_DIRECTORIES true ${patterns})
  list(APPEND roots /usr/local/cuda ${wheels})
  set(${out} ${roots} PARENT_SCOPE)
endfunction()

# ddp_cuda_part(NAME HEADER ROOT LIBRARY...): one of the parts. DDP_NAME_INCLUDE, DDP_NAME_LIBRARY.
function(ddp_cuda_part name header root)
  find_path(DDP_${name}_INCLUDE ${header} HINTS ${root} ${DDP_CUDA_ROOTS} PATH_SUFFIXES include)
  find_library(DDP_${name}_LIBRARY NAMES ${ARGN} NAMES_PER_DIR HINTS ${root} ${DDP_CUDA_ROOTS}
    PATH_SUFFIXES lib64 lib)
  mark_as_advanced(DDP_${name}_INCLUDE DDP_${name}_LIBRARY)
  foreach(kind INCLUDE LIBRARY)
    if(NOT DDP_${name}_${kind})
      set(what_INCLUDE ${header})
      list(GET ARGN 0 first)
      set(what_LIBRARY lib${first})
      set(DDP_CUDA_MISSING_${kind} ${DDP_CUDA_MISSING_${kind}} ${what_${kind}} PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

set(DDP_CUDA_HEADERS OFF)
set(DDP_CUDA_BUILD OFF)
set(DDP_CUDA_MISSING_INCLUDE "")
set(DDP_CUDA_MISSING_LIBRARY "")
if(NOT DDP_CUDA STREQUAL "off")
  find_program(DDP_NVCC nvcc HINTS ${CUDA_ROOT}/bin ENV CUDA_HOME PATHS /usr/local/cuda/bin
    PATH_SUFFIXES bin)
  mark_as_advanced(DDP_NVCC)
  ddp_cuda_roots(DDP_CUDA_ROOTS)
  ddp_cuda_part(CUDART cuda_runtime_api.h "${CUDA_ROOT}" cudart libcudart.so.13 libcudart.so.12)
  ddp_cuda_part(CUBLASLT cublasLt.h "${CUDA_ROOT}" cublasLt libcublasLt.so.13 libcublasLt.so.12)
  ddp_cuda_part(CUDNN cudnn.h "${CUDNN_ROOT}" cudnn libcudnn.so.9)
  ddp_cuda_part(NCCL nccl.h "${NCCL_ROOT}" nccl libnccl.so.2)
endif()

if(DDP_CUDA STREQUAL "off")
  message(STATUS "CUDA: off")
elseif(NOT DDP_CUDA_MISSING_INCLUDE STREQUAL "")
  string(REPLACE ";" ", " DDP_CUDA_WHY "no ${DDP_CUDA_MISSING_INCLUDE}")
else()
  set(DDP_CUDA_HEADERS ON)
  set(DDP_CUDA_INCLUDE_DIRS ${DDP_CUDART_INCLUDE} ${DDP_CUBLASLT_INCLUDE} ${DDP_CUDNN_INCLUDE}
    ${DDP_NCCL_INCLUDE})
  list(REMOVE_DUPLICATES DDP_CUDA_INCLUDE_DIRS)
  set(DDP_CUDA_LIBRARIES ${DDP_CUBLASLT_LIBRARY} ${DDP_CUDNN_LIBRARY} ${DDP_NCCL_LIBRARY}
    ${DDP_CUDART_LIBRARY})
  if(NOT DDP_CUDA_MISSING_LIBRARY STREQUAL "")
    string(REPLACE ";" ", " DDP_CUDA_WHY "no ${DDP_CUDA_MISSING_LIBRARY}")
  elseif(NOT DDP_NVCC)
    set(DDP_CUDA_WHY "no nvcc")
  elseif(DDP_SANITIZE)
    set(DDP_CUDA_WHY "sanitized, so only for the tests' simulator")
  else()
    set(DDP_CUDA_BUILD ON)
  endif()
endif()

if(DDP_CUDA_BUILD)
  execute_process(COMMAND ${DDP_NVCC} --version OUTPUT_VARIABLE DDP_NVCC_TEXT)
  string(REGEX REPLACE ".*release ([0-9.]+).*" "\\1" DDP_NVCC_VERSION "${DDP_NVCC_TEXT}")
  if(DDP_CUDA_ARCHS STREQUAL "" AND DDP_NVCC_VERSION VERSION_LESS 12.8)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  elseif(DDP_CUDA_ARCHS STREQUAL "")
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100) # the last one also as PTX
  else()
    set(CMAKE_CUDA_ARCHITECTURES ${DDP_CUDA_ARCHS})
  endif()
  set(CMAKE_CUDA_COMPILER ${DDP_NVCC})
  if(CMAKE_C_COMPILER_LAUNCHER AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_C_COMPILER_LAUNCHER})
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    string(REPLACE ";" " " DDP_CUDA_TEXT "${CMAKE_CUDA_ARCHITECTURES}")
    message(STATUS "CUDA: ${DDP_NVCC} ${DDP_NVCC_VERSION} for ${DDP_CUDA_TEXT}, ${DDP_CUDNN_LIBRARY}, "
      "${DDP_NCCL_LIBRARY}")
  else()
    set(DDP_CUDA_BUILD OFF)
    set(DDP_CUDA_WHY "${DDP_NVCC} does not work here: it needs a C++ compiler that it knows")
  endif()
endif()
if(DDP_CUDA STREQUAL "on" AND NOT DDP_CUDA_BUILD)
  message(FATAL_ERROR "DDP_CUDA=on: ${DDP_CUDA_WHY}. CUDA 12 or later, cuDNN 9 and NCCL 2 are looked "
    "for in -DCUDA_ROOT, -DCUDNN_ROOT, -DNCCL_ROOT, -DDDP_CUDA_WHEELS (a site-packages folder) and "
    "the usual places")
elseif(DDP_CUDA STREQUAL "auto" AND NOT DDP_CUDA_BUILD)
  message(STATUS "CUDA: built without (${DDP_CUDA_WHY})")
endif()

# The host's part as objects, which the tests use too, and the module itself. After the target ddp.
function(ddp_add_cuda_module)
  if(NOT DDP_CUDA_HEADERS)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/device/cuda/*.c
    ${CMAKE_SOURCE_DIR}/src/comm/nccl/*.c)
  add_library(ddp_cuda_host OBJECT EXCLUDE_FROM_ALL ${sources})
  target_compile_definitions(ddp_cuda_host PUBLIC _GNU_SOURCE)
  target_include_directories(ddp_cuda_host PUBLIC ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
  target_include_directories(ddp_cuda_host SYSTEM PUBLIC ${DDP_CUDA_INCLUDE_DIRS})
  target_link_libraries(ddp_cuda_host PRIVATE ddp_warnings)
  if(NOT DDP_CUDA_BUILD)
    return()
  endif()

  # CMake leaves out what it takes for the system's own; the toolkit's folder need not be.
  set(folders "")
  foreach(library ${DDP_CUDA_LIBRARIES})
    get_filename_component(folder ${library} DIRECTORY)
    list(APPEND folders ${folder})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/device/cuda/*.cu)
  add_library(ddp_cuda_code OBJECT ${kernels})
  target_include_directories(ddp_cuda_code PRIVATE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src
    ${CMAKE_SOURCE_DIR}/src/device/cuda/nvcc)
  # Not -Wconversion: what nvcc makes of a launch would not pass.
  target_compile_options(ddp_cuda_code PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;--threads=2;-Xcompiler=-Wall,-Wextra,-Werror>")
  set_target_properties(ddp_cuda_code PROPERTIES CUDA_RUNTIME_LIBRARY None CUDA_STANDARD 17
    CUDA_VISIBILITY_PRESET hidden)
  add_library(ddp_cuda SHARED $<TARGET_OBJECTS:ddp_cuda_code> $<TARGET_OBJECTS:ddp_cuda_host>)
  target_link_libraries(ddp_cuda PRIVATE ddp ${DDP_CUDA_LIBRARIES})
  target_link_options(ddp_cuda PRIVATE -Wl,--no-undefined -Wl,--enable-new-dtags)
  set_target_properties(ddp_cuda PROPERTIES LINKER_LANGUAGE CUDA CUDA_RUNTIME_LIBRARY None
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
    BUILD_RPATH "${folders}" INSTALL_RPATH "$ORIGIN;${folders}")
  set(DDP_CUDA_FOLDERS ${folders} PARENT_SCOPE)
endfunction()
