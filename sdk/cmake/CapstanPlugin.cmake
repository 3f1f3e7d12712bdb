# capstan_add_plugin(<name> <kind> SOURCES <file>... [LINK <library>...])
#
# Builds libcapstan_<kind>_<name>.so in ${CMAKE_BINARY_DIR}/plugins, a module that exports
# capstan_plugin_entry and nothing else, and that resolves every symbol at link time. Works inside the
# Capstan tree and, through find_package(Capstan), outside it. The target is capstan_<kind>_<name>.

set(_CAPSTAN_PLUGIN_MAP "${CMAKE_CURRENT_LIST_DIR}/plugin.map")
if(NOT CAPSTAN_SDK_INCLUDE_DIR)
  get_filename_component(CAPSTAN_SDK_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
endif()

function(capstan_add_plugin name kind)
  cmake_parse_arguments(PARSE_ARGV 2 ARG "" "" "SOURCES;LINK")
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "capstan_add_plugin(${name} ${kind}): unknown arguments ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT ARG_SOURCES)
    message(FATAL_ERROR "capstan_add_plugin(${name} ${kind}): SOURCES is empty")
  endif()

  set(target capstan_${kind}_${name})
  add_library(${target} MODULE ${ARG_SOURCES})
  target_include_directories(${target} PRIVATE "${CAPSTAN_SDK_INCLUDE_DIR}")
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES
    PREFIX lib
    OUTPUT_NAME ${target}
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/plugins"
    POSITION_INDEPENDENT_CODE ON
    CXX_EXTENSIONS OFF
    C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS "${_CAPSTAN_PLUGIN_MAP}")
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic)
  # Without it g++ marks inline statics GNU_UNIQUE, which ld.so shares between plugins and which pins
  # a library in memory.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-gnu-unique>)
  target_link_options(${target} PRIVATE
    "LINKER:--version-script=${_CAPSTAN_PLUGIN_MAP}"
    LINKER:--exclude-libs,ALL
    LINKER:-z,defs
    LINKER:-z,noexecstack)
  target_link_libraries(${target} PRIVATE ${ARG_LINK})
  set_property(GLOBAL APPEND PROPERTY CAPSTAN_PLUGIN_TARGETS ${target})
endfunction()
