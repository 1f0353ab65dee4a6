# Everything that libddp links, as one target: ddp_dependencies. What ddp_pack needs beside it:
# ddp_image_files.
find_package(PkgConfig REQUIRED)
if(DDP_MPI)
  find_package(MPI COMPONENTS C)
  if(NOT MPI_C_FOUND)
    message(FATAL_ERROR "MPI is not here: -DMPI_HOME=PREFIX says where it is, -DDDP_MPI=off builds for one process")
  endif()
endif()
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C) # the threads of an operation, as oneDNN's own
pkg_check_modules(INIH REQUIRED IMPORTED_TARGET inih)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c)
find_program(PROTOC_C protoc-c REQUIRED) # Debian: protobuf-c-compiler
if(DDP_PACK)
  pkg_check_modules(TURBOJPEG REQUIRED IMPORTED_TARGET libturbojpeg)
  pkg_check_modules(PNG REQUIRED IMPORTED_TARGET libpng)
  add_library(ddp_image_files INTERFACE)
  target_link_libraries(ddp_image_files INTERFACE PkgConfig::TURBOJPEG PkgConfig::PNG)
endif()
# oneDNN by its header and library, not by its CMake package: Debian's asks for OpenCL's development
# files, which the CPU engine does not need. -DDNNL_ROOT=PREFIX chooses another installation.
find_path(DNNL_INCLUDE dnnl.h HINTS ${DNNL_ROOT} PATH_SUFFIXES include REQUIRED)
find_library(DNNL_LIBRARY dnnl HINTS ${DNNL_ROOT} PATH_SUFFIXES lib REQUIRED)
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES
  IMPORTED_LOCATION ${DNNL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE})

add_library(ddp_dependencies INTERFACE)
target_link_libraries(ddp_dependencies INTERFACE $<$<BOOL:${DDP_MPI}>:MPI::MPI_C> Threads::Threads ZLIB::ZLIB OpenMP::OpenMP_C
  PkgConfig::INIH PkgConfig::JANSSON PkgConfig::XXHASH PkgConfig::HWLOC PkgConfig::PROTOBUF_C
  DNNL::dnnl m)
