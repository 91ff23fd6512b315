# A guest's process that is nothing but lists of system calls: it carries out its own, which builds the cage around it,
# waits for another on its job channel, and carries that out, which ends with an exec. It decides nothing.
#
# list_program.py lays out the file and says what is in the block; tests/unit/cage/test_cage_call_list.py assembles this.

        .intel_syntax noprefix
        .text

        .equ    RUN, 0                          # the block, which is found by the last word of this page
        .equ    STEPS, 8
        .equ    COUNT, 16
        .equ    VALUES, 24
        .equ    GIVEN, 32
        .equ    JOB, 40
        .equ    GO, 48
        .equ    HANDOFF, 56
        .equ    RESULTS, 64
        .equ    FAILURES, 72                    # three words for each step: text, length, where the errno's digits end
        .equ    PLACE, 80                       # where a job goes
        .equ    HEADER, 88                      # of a job: bytes to map, bytes to come, steps, count, values
                                                # the first two values are the descriptors JOB and GO

start:  mov     rbx, [0x400ff8]
        mov     rdi, [rbx + STEPS]
        mov     rsi, [rbx + COUNT]
        mov     rdx, [rbx + VALUES]
        mov     rcx, [rbx + GIVEN]
        call    [rbx + RUN]
        cmp     rax, [rbx + COUNT]
        jne     failed

        mov     rdi, [rbx + JOB]
        call    close_on_exec
        mov     rdi, [rbx + GO]
        call    close_on_exec
        lea     r12, [rbx + HEADER]
        mov     r13d, 40
        call    receive
        mov     rdi, [rbx + PLACE]
        mov     rsi, [rbx + HEADER]
        mov     edx, 3                          # to be read and written
        mov     r10d, 0x32                      # private, fixed, anonymous
        mov     r8, -1
        xor     r9d, r9d
        mov     eax, 9                          # mmap
        syscall
        mov     r14, rax
        mov     r15, -1
        cmp     rax, [rbx + PLACE]
        jne     unfit
        mov     r12, [rbx + PLACE]
        mov     r13, [rbx + HEADER + 8]
        call    receive
        mov     rdi, [rbx + HEADER + 16]
        mov     rsi, [rbx + HEADER + 24]
        mov     rdx, [rbx + HEADER + 32]
        mov     rax, [rbx + JOB]
        mov     [rdx], rax
        mov     rax, [rbx + GO]
        mov     [rdx + 8], rax
        mov     ecx, 2
        call    [rbx + RUN]
        mov     rcx, [rbx + HEADER + 32]
        mov     r14, [rcx + rax * 8 + 16]
        mov     r15, rax

# A step of the job failed: reports which one, and its result, to the supervisor.
unfit:  mov     [rbx + HEADER], r15
        mov     [rbx + HEADER + 8], r14
        mov     rdi, [rbx + JOB]
        lea     rsi, [rbx + HEADER]
        mov     edx, 16
        mov     eax, 1                          # write
        syscall
        mov     edi, 126
        jmp     exit

# A step of its own failed: the text for it, with the errno put in.
failed: mov     rcx, [rbx + RESULTS]
        mov     rcx, [rcx + rax * 8]
        neg     rcx
        cmp     rcx, 4096
        jb      error
        xor     ecx, ecx                        # it came back, and not as it must
error:  lea     rax, [rax + rax * 2]
        mov     r12, [rbx + FAILURES]
        lea     r12, [r12 + rax * 8]
        mov     rsi, [r12 + 16]
        mov     eax, ecx
        mov     ecx, 10
digit:  xor     edx, edx
        div     ecx
        add     dl, '0'
        dec     rsi
        mov     [rsi], dl
        test    eax, eax
        jnz     digit
        mov     rdi, [rbx + HANDOFF]
        mov     rsi, [r12]
        mov     rdx, [r12 + 8]
        mov     r10d, 0x4000                    # without a signal
        xor     r8d, r8d
        xor     r9d, r9d
        mov     eax, 44                         # sendto
        syscall
        mov     edi, 1
exit:   mov     eax, 231                        # exit_group
        syscall

# Reads exactly r13 bytes to r12. Exits at the end of the stream: the cell is no longer needed.
receive:
        mov     rdi, [rbx + JOB]
        mov     rsi, r12
        mov     rdx, r13
        mov     r10d, 0x100                     # all of them
        xor     r8d, r8d
        xor     r9d, r9d
        mov     eax, 45                         # recvfrom
        syscall
        xor     edi, edi
        cmp     rax, 0
        jle     exit
        add     r12, rax
        sub     r13, rax
        jnz     receive
        ret

close_on_exec:
        mov     esi, 2                          # F_SETFD
        mov     edx, 1
        mov     eax, 72                         # fcntl
        syscall
        ret
