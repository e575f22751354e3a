# Targets grpcxx::grpcxx (shared) and grpcxx::static, wherever the files were put.
get_filename_component(grpcxx_libraries "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
get_filename_component(grpcxx_prefix "${CMAKE_CURRENT_LIST_DIR}/@TO_PREFIX@/.." ABSOLUTE)

if(NOT TARGET grpcxx::grpcxx)
  find_package(Threads REQUIRED)
  add_library(grpcxx::grpcxx SHARED IMPORTED)
  set_target_properties(grpcxx::grpcxx PROPERTIES
    IMPORTED_LOCATION "${grpcxx_libraries}/libgrpcxx_capi.so"
    IMPORTED_SONAME libgrpcxx_capi.so
    INTERFACE_INCLUDE_DIRECTORIES "${grpcxx_prefix}/include")
  add_library(grpcxx::static STATIC IMPORTED)
  set_target_properties(grpcxx::static PROPERTIES
    IMPORTED_LOCATION "${grpcxx_libraries}/libgrpcxx_capi.a"
    INTERFACE_INCLUDE_DIRECTORIES "${grpcxx_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()
