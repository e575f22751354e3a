/* Names under which rustc calls what gcc's thread sanitizer has under the usual ones. */
#include <string.h>

void *__tsan_memcpy(void *target, const void *source, size_t size) { return memcpy(target, source, size); }
void *__tsan_memmove(void *target, const void *source, size_t size) { return memmove(target, source, size); }
void *__tsan_memset(void *target, int byte, size_t size) { return memset(target, byte, size); }
