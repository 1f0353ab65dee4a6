# What `cmake --install` puts where: programs, library, headers, the CMake package "ddp" with its target
# ddp::ddp, and ddp.pc. Both find their files relative to themselves, so the tree may be moved.
include(CMakePackageConfigHelpers)

set(DDP_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/ddp)
install(TARGETS ddp EXPORT ddp_targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_COMPONENT development
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET ddp_cuda)
  install(TARGETS ddp_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_SKIP)
endif()
install(TARGETS ddp_train ddp_ckpt ddp_bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(DDP_PACK)
  install(TARGETS ddp_pack RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/ddp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
install(EXPORT ddp_targets NAMESPACE ddp:: FILE ddpTargets.cmake DESTINATION ${DDP_PACKAGE_DIR})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ddpConfig.cmake.in
  ${CMAKE_BINARY_DIR}/ddpConfig.cmake INSTALL_DESTINATION ${DDP_PACKAGE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ddpConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ddpConfig.cmake ${CMAKE_BINARY_DIR}/ddpConfigVersion.cmake
  DESTINATION ${DDP_PACKAGE_DIR})

file(RELATIVE_PATH DDP_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/ddp.pc.in ${CMAKE_BINARY_DIR}/ddp.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/ddp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
